"""Gated delta net: a short causal convolution, the gated delta rule, a gated norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Depthwise, Linear, WeightSource
from dgpp.state.declaration import FixedState, Ring
from kernels_numba.backend import Backend, Norm, Rows, Tensor
from kernels_numba.extended import Convolution, DeltaRule


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """`silu`: the output gate is silu, else sigmoid."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    eps: float
    silu: bool

    def own(self, shard: Shard) -> DeltaShape:
        """One rank's heads. Raises ConfigError where they cannot be shared out equally."""
        return replace(
            self,
            key_heads=shard.part(self.key_heads, "config.json's linear_num_key_heads"),
            value_heads=shard.part(self.value_heads, "config.json's linear_num_value_heads"),
        )

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Values of a row [q | k | v]."""
        return 2 * self.keys + self.values

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(first, count) of q, k and v in such a row; each is shared out by heads."""
        return ((0, self.keys), (self.keys, self.keys), (2 * self.keys, self.values))

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`; `self` is a rank's own shape."""
        return (
            ("delta inputs", self.channels),
            ("delta qkv", self.channels),
            ("delta gate", self.values),
            ("delta ab", 2 * self.value_heads),
            ("delta decay", self.value_heads),
            ("delta beta", self.value_heads),
            ("delta out", self.values),
        )

    def ring(self, name: str) -> Ring:
        """The convolution's last inputs; `self` is a rank's own shape. They need no slack for what
        is drafted in vain: whoever takes the recurrence back takes them back with it."""
        return Ring(f"{name} convolution", self.taps - 1, self.channels, wide=True)

    def fixed(self, name: str) -> FixedState:
        """The recurrence's state; `self` is a rank's own shape."""
        return FixedState(f"{name} state", self.value_heads * self.key_dim, self.value_dim)


class GatedDeltaNet:
    """out = (out +) out_proj(norm(rule(conv(in_proj_qkv x))) · act(in_proj_z x)).

    In a world a rank has its share of the heads. `shape` is the whole layer's; `format_of` says how
    the checkpoint stores a module.
    """

    def __init__(
        self,
        source: WeightSource,
        name: str,
        shape: DeltaShape,
        format_of: Callable[[str], Format],
    ) -> None:
        self.shape = own = shape.own(source.shard)
        hidden, heads = shape.hidden, shape.value_heads

        def linear(part: str, rows: int) -> Linear:
            module = f"{name}.{part}"
            return Linear(module, rows, hidden, format_of(module), split=Split.ROWS)

        inputs = structs.replace(linear("in_proj_qkv", shape.channels), take=shape.ranges)
        gates = [linear(part, heads) for part in ("in_proj_a", "in_proj_b")]
        self._inputs = source.matrix("attention", [inputs])
        self._gate = source.matrix("attention", [linear("in_proj_z", shape.values)])
        self._gates = source.matrix("delta gates", gates)
        channels = Depthwise(f"{name}.conv1d.weight", shape.channels, shape.ranges)
        kernel = source.depthwise("attention", [channels], shape.taps)
        self._convolution = Convolution(kernel, own.channels, shape.taps)
        self._log_rate = source.joined("attention", [(f"{name}.A_log", heads)])
        self._bias = source.joined("attention", [(f"{name}.dt_bias", heads)])
        weight = source.vector("norms", f"{name}.norm.weight", shape.value_dim)
        self._norm = Norm(weight, shape.eps)
        module = f"{name}.out_proj"
        output = Linear(module, hidden, shape.values, format_of(module), split=Split.COLUMNS)
        self._output = source.matrix("attention", [output])
        self._rule = DeltaRule(own.key_heads, own.value_heads, own.key_dim, own.value_dim)

    def prepare(self, ops: Backend, ring: object, state: object) -> None:
        """Give the layer its convolution's ring and its state, once."""
        self._extended = extended(ops)
        self._ring, self._state = ring, state

    def forward(
        self, rows: Rows, work: Workspace, x: Tensor, out: Tensor, *, norm: Norm | None, add: bool
    ) -> None:
        ops, held = self._extended, work.extra
        if norm is not None:
            ops.norm(rows, x, norm, work.normed)
            x = work.normed
        ops.linear(rows, x, self._inputs, held["delta inputs"])
        ops.linear(rows, x, self._gate, held["delta gate"])
        ops.linear(rows, x, self._gates, held["delta ab"])
        inputs, qkv = held["delta inputs"], held["delta qkv"]
        ops.causal_conv(rows, inputs, self._convolution, self._ring, qkv)
        ops.ring_write(rows, inputs, self._ring)
        decay, beta, mixed = held["delta decay"], held["delta beta"], held["delta out"]
        ops.delta_gates(rows, held["delta ab"], self._log_rate, self._bias, decay, beta)
        ops.gated_delta(rows, qkv, self._rule, decay, beta, self._state, mixed)
        ops.gated_norm(
            rows,
            mixed,
            held["delta gate"],
            self._norm,
            self.shape.value_heads,
            work.attended,
            silu=self.shape.silu,
        )
        ops.linear(rows, work.attended, self._output, out, add=add)
