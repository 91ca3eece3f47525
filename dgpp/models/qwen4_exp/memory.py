"""What n-grams say: rows of a table join the branches as far as their keys fit, then a dilated
convolution of what joined."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.models.layers.extended import extended
from dgpp.models.layers.ngram import NgramRows, NgramShape
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.qwen4_exp.config import Qwen4ExpConfig
from dgpp.models.qwen4_exp.ngrams import ngram_shape, ngram_table
from dgpp.models.sources import Depthwise, Linear, WeightSource
from dgpp.state.declaration import Ring
from kernels_numba.backend import Backend, Norm, Rows
from kernels_numba.extended import Convolution
from kernels_numba.streams import StreamGate

ITEM = "n-gram memory"


@dataclass(frozen=True, slots=True)
class MemoryShape:
    """`branches` of `width` values; a convolution of `taps`, `dilation` tokens apart."""

    ngrams: NgramShape
    branches: int
    width: int
    taps: int
    dilation: int
    eps: float

    @property
    def whole(self) -> int:
        return self.branches * self.width

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (
            *self.ngrams.rows,
            ("memory kv", self.whole + self.width),
            ("memory joined", self.whole),
            ("memory normed", self.whole),
            ("memory convolved", self.whole),
        )

    def rings(self, name: str) -> tuple[Ring, Ring]:
        """The last tokens, and the convolution's last inputs."""
        history = (self.taps - 1) * self.dilation
        return (
            self.ngrams.ring(name),
            Ring(f"{name} memory", history, self.whole, wide=True),
        )


def memory_shape(config: Qwen4ExpConfig) -> MemoryShape:
    return MemoryShape(
        ngrams=ngram_shape(config),
        branches=config.hc_count,
        width=config.hidden_size,
        taps=config.ple_conv_kernel_size,
        dilation=config.ngram_size,
        eps=config.rms_norm_eps,
    )


class NgramMemory:
    """branches += u + silu(conv(norm(u))) with u_i = gate_i · value: each branch has a key, and its
    gate says how well key and branch fit. All norms are per branch and stored less one. `names` are
    those that releases give it."""

    def __init__(
        self, config: Qwen4ExpConfig, source: WeightSource, names: tuple[str, ...]
    ) -> None:
        shape = self.shape = memory_shape(config)
        probe = "norm_key.weight"
        name = source.choose([f"{each}.{probe}" for each in names]).removesuffix(f".{probe}")
        prefixes = tuple(f"{each}.ple_embedding" for each in names)
        table = ngram_table(config, prefixes, source.shard)
        self._rows = NgramRows(source, table, shape.ngrams)
        looked_up = shape.ngrams.width
        sides = [
            Linear(f"{name}.{part}_proj", rows, looked_up, config.format(f"{name}.{part}_proj"))
            for part, rows in (("key", shape.whole), ("value", shape.width))
        ]
        self._project = source.matrix(ITEM, sides)
        key, query, conv = (
            source.vector("norms", f"{name}.norm_{part}.weight", shape.whole, plus=1.0)
            for part in ("key", "query", "conv")
        )
        self._gate = StreamGate(query, key, shape.branches, shape.width, shape.eps)
        self._norm = Norm(conv, shape.eps)
        channels = Depthwise(f"{name}.conv1d.weight", shape.whole, whole=True)
        kernel = source.depthwise(ITEM, [channels], shape.taps)
        self._convolution = Convolution(kernel, shape.whole, shape.taps, shape.dilation)

    def prepare(self, ops: Backend, work: Workspace, tokens: object, inputs: object) -> None:
        """Give the layer the rings of its tokens and of its convolution's inputs, once."""
        self._ring = inputs
        self._rows.prepare(ops, work, tokens)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        more, held, streams = extended(ops), work.extra, work.streams
        kv, joined, normed, convolved = (
            held[f"memory {part}"] for part in ("kv", "joined", "normed", "convolved")
        )
        found = self._rows.forward(rows, work, observer)
        more.linear(rows, found, self._project, kv)
        more.gate_streams(rows, streams, kv, self._gate, joined)
        more.group_norm(rows, joined, self._norm, self.shape.branches, normed)
        more.causal_conv(rows, normed, self._convolution, self._ring, convolved)
        more.ring_write(rows, normed, self._ring)
        more.add(rows, joined, streams)
        more.add(rows, convolved, streams)
