"""What n-grams say: rows of a table join the branches as far as their keys fit, then a dilated
convolution of what joined."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.models.layers.branches import BranchShape
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
    """What joins `branches`; a convolution of `taps`, `dilation` tokens apart."""

    ngrams: NgramShape
    branches: BranchShape
    taps: int
    dilation: int

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        whole = self.branches.whole
        return (
            *self.ngrams.rows,
            ("memory kv", whole + self.branches.width),
            ("memory joined", whole),
            ("memory normed", whole),
            ("memory convolved", whole),
        )

    def rings(self, name: str) -> tuple[Ring, Ring]:
        """The last tokens, and the convolution's last inputs."""
        history = (self.taps - 1) * self.dilation
        return (
            self.ngrams.ring(name),
            Ring(f"{name} memory", history, self.branches.whole, wide=True),
        )


def memory_shape(config: Qwen4ExpConfig, branches: BranchShape) -> MemoryShape:
    return MemoryShape(
        ngrams=ngram_shape(config),
        branches=branches,
        taps=config.ple_conv_kernel_size,
        dilation=config.ngram_size,
    )


class NgramMemory:
    """branches += u + silu(conv(norm(u))) with u_i = gate_i · value: each branch has a key, and its
    gate says how well key and branch fit. All norms are per branch and stored less one. `names` are
    those that releases give it."""

    def __init__(
        self,
        config: Qwen4ExpConfig,
        source: WeightSource,
        branches: BranchShape,
        names: tuple[str, ...],
    ) -> None:
        shape = self.shape = memory_shape(config, branches)
        probe = "norm_key.weight"
        name = source.choose([f"{each}.{probe}" for each in names]).removesuffix(f".{probe}")
        prefixes = tuple(f"{each}.ple_embedding" for each in names)
        table = ngram_table(config, prefixes, source.shard)
        self._rows = NgramRows(source, table, shape.ngrams)
        looked_up = shape.ngrams.width
        sides = [
            Linear(f"{name}.{part}_proj", rows, looked_up, config.format(f"{name}.{part}_proj"))
            for part, rows in (("key", branches.whole), ("value", branches.width))
        ]
        self._project = source.matrix(ITEM, sides)
        key, query, conv = (
            source.vector("norms", f"{name}.norm_{part}.weight", branches.whole, plus=1.0)
            for part in ("key", "query", "conv")
        )
        self._gate = StreamGate(query, key, branches.branches, branches.width, branches.eps)
        self._norm = Norm(conv, branches.eps)
        channels = Depthwise(f"{name}.conv1d.weight", branches.whole, whole=True)
        kernel = source.depthwise(ITEM, [channels], shape.taps)
        self._convolution = Convolution(kernel, branches.whole, shape.taps, shape.dilation)

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
        more.group_norm(rows, joined, self._norm, self.shape.branches.branches, normed)
        more.causal_conv(rows, normed, self._convolution, self._ring, convolved)
        more.ring_write(rows, normed, self._ring)
        more.add(rows, joined, streams)
        more.add(rows, convolved, streams)
