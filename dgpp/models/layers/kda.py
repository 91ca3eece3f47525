"""Kimi delta attention: the gated delta rule with a decay per key channel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Depthwise, Linear, WeightSource
from dgpp.state.declaration import FixedState, Ring
from kernels_numba.backend import Backend, Norm, Rows, Tensor
from kernels_numba.extended import Convolution, DeltaRule


@dataclass(frozen=True, slots=True)
class KdaShape:
    """`heads` of `dim` keys and values; a decay is never below exp(`bound`)."""

    hidden: int
    heads: int
    dim: int
    taps: int
    bound: float
    eps: float

    def own(self, shard: Shard) -> KdaShape:
        """One rank's heads. Raises ConfigError where they cannot be shared out equally."""
        what = "config.json's linear_attn_config.num_heads"
        return replace(self, heads=shard.part(self.heads, what))

    @property
    def width(self) -> int:
        """Values of all heads."""
        return self.heads * self.dim

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`; `self` is a rank's own shape."""
        return (
            ("kda inputs", 3 * self.width),
            ("kda qkv", 3 * self.width),
            ("kda low", self.dim),
            ("kda wide", self.width),
            ("kda decay", self.width),
            ("kda strength", self.heads),
            ("kda beta", self.heads),
            ("kda out", self.width),
        )

    def ring(self, name: str) -> Ring:
        """The convolution's last inputs; `self` is a rank's own shape."""
        return Ring(f"{name} convolution", self.taps - 1, 3 * self.width, wide=True)

    def fixed(self, name: str) -> FixedState:
        """The recurrence's state; `self` is a rank's own shape."""
        return FixedState(f"{name} state", self.width, self.dim)


class KimiDelta:
    """o_proj(norm(rule(conv(q | k | v))) · sigmoid(g)) of norm(x), added to work's fold.

    Decays and output gates come through low-rank projections. In a world a rank has its share of
    the heads. `shape` is the whole layer's; all tensors are bf16.
    """

    def __init__(self, source: WeightSource, name: str, norm: str, shape: KdaShape) -> None:
        self.shape = own = shape.own(source.shard)
        hidden, width, dim = shape.hidden, shape.width, shape.dim

        def linear(part: str, rows: int, columns: int, split: Split = Split.ROWS) -> Tensor:
            module = Linear(f"{name}.{part}_proj", rows, columns, split=split)
            return source.matrix("attention", [module])

        self._norm = Norm(source.vector("norms", f"{norm}.weight", hidden), shape.eps)
        parts = [Linear(f"{name}.{p}_proj", width, hidden, split=Split.ROWS) for p in "qkv"]
        self._inputs = source.matrix("attention", parts)
        kernels = [Depthwise(f"{name}.{part}_conv1d.weight", width) for part in "qkv"]
        kernel = source.depthwise("attention", kernels, shape.taps)
        self._convolution = Convolution(kernel, 3 * own.width, shape.taps)
        self._decay_down, self._gate_down = (
            linear(f"{part}_a", dim, hidden, Split.NONE) for part in "fg"
        )
        self._decay_up, self._gate_up = (linear(f"{part}_b", width, dim) for part in "fg")
        self._strength = linear("b", shape.heads, hidden)
        self._log_rate = source.joined("attention", [(f"{name}.A_log", shape.heads)])
        self._bias = source.joined("attention", [(f"{name}.dt_bias", width)])
        self._output = linear("o", hidden, width, Split.COLUMNS)
        self._head_norm = Norm(source.vector("norms", f"{name}.o_norm.weight", dim), shape.eps)
        self._rule = DeltaRule(own.heads, own.heads, dim, dim, channels=dim)

    def prepare(self, ops: Backend, ring: object, state: object) -> None:
        """Give the layer its convolution's ring and its state, once."""
        self._ops = extended(ops)
        self._ring, self._state = ring, state

    def forward(self, rows: Rows, work: Workspace) -> None:
        ops, held, normed = self._ops, work.extra, work.normed
        inputs, qkv, low, wide = (held[f"kda {part}"] for part in ("inputs", "qkv", "low", "wide"))
        decay, strength, beta, out = (
            held[f"kda {part}"] for part in ("decay", "strength", "beta", "out")
        )
        ops.norm(rows, work.x, self._norm, normed)
        ops.linear(rows, normed, self._inputs, inputs)
        ops.causal_conv(rows, inputs, self._convolution, self._ring, qkv)
        ops.ring_write(rows, inputs, self._ring)
        ops.linear(rows, normed, self._decay_down, low)
        ops.linear(rows, low, self._decay_up, wide)
        ops.linear(rows, normed, self._strength, strength)
        rate, bias, bound = self._log_rate, self._bias, self.shape.bound
        ops.channel_gates(rows, wide, strength, rate, bias, bound, decay, beta)
        ops.gated_delta(rows, qkv, self._rule, decay, beta, self._state, out)
        ops.linear(rows, normed, self._gate_down, low)
        ops.linear(rows, low, self._gate_up, wide)
        heads = self.shape.heads
        ops.gated_norm(rows, out, wide, self._head_norm, heads, work.attended, silu=False)
        fold = work.fold
        ops.linear(rows, work.attended, self._output, fold.target, add=fold.add)
        fold.finish(rows)
