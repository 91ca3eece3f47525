"""Which entries a query attends to: index heads score every entry's key, the best are taken."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import (
    Candidates,
    ExtendedBackend,
    Index,
    Rotation,
    Rounding,
    Selection,
)


@dataclass(frozen=True, slots=True)
class EntryIndexerShape:
    """`top` entries are taken, of which there is one per `every` tokens; `rank` is the queries'
    input, and their trailing `rotated` values turn in pairs. `rounding` is of the queries, and
    `evened` as their keys' (`CompressorShape`)."""

    hidden: int
    rank: int
    heads: int
    dim: int
    rotated: int
    top: int
    every: int
    rounding: Rounding | None = None
    evened: bool = False

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (("index queries", self.heads * self.dim), ("index weights", self.heads))


class EntryIndexer:
    """score(e) = Σ_h w_h relu(q_h · k_e / √dim). Every rank computes all of it; the keys are made
    and kept by others."""

    def __init__(
        self, source: WeightSource, name: str, shape: EntryIndexerShape, stored: Format
    ) -> None:
        self._shape = shape
        queries = Linear(f"{name}.wq_b", shape.heads * shape.dim, shape.rank, stored)
        weights = Linear(f"{name}.weights_proj", shape.heads, shape.hidden)
        self._queries = source.matrix("indexer", [queries])
        self._weights = source.matrix("indexer", [weights])
        scale, weight = shape.dim**-0.5, shape.heads**-0.5
        self._index = Index(shape.heads, shape.dim, shape.top, scale, weight, shape.every)

    def prepare(self, ops: ExtendedBackend, angles: Tensor) -> None:
        """Give the indexer its rotary table, once."""
        shape = self._shape
        self._ops = ops
        at, half = shape.dim - shape.rotated, shape.rotated // 2
        self._turn = Rotation(angles, shape.heads, shape.dim, at, half, pairs=True)

    def forward(
        self,
        rows: Rows,
        work: Workspace,
        normed: Tensor,
        ranked: Tensor,
        norm: Norm,
        keys: object,
        selection: Selection,
        candidates: Candidates | None = None,
    ) -> None:
        """Select for the queries that norm(`ranked`) makes, weighted by what `normed` makes; the
        rows' own `keys` are kept already."""
        ops, shape = self._ops, self._shape
        queries, weights = work.extra["index queries"], work.extra["index weights"]
        ops.linear(rows, ranked, self._queries, queries, norm=norm)
        ops.rotate(rows, queries, self._turn)
        if shape.rounding is not None:
            if shape.evened:
                ops.hadamard(rows, queries, shape.heads)
            ops.round_rows(rows, queries, shape.rounding)
        ops.linear(rows, normed, self._weights, weights)
        index = self._index
        ops.index_select(rows, queries, weights, index, keys, selection, candidates=candidates)
