"""Which positions a query attends to: index heads score every cached key, the best are taken."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import PagedRows
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import ExtendedBackend, Index, Rotation, Selection

KEY_EPS = 1e-6
"""Of the keys' layer norm."""


@dataclass(frozen=True, slots=True)
class IndexerShape:
    """`rotated` leading values of queries and keys turn in pairs; `rank` is the queries' input.
    `dim` is whole vectors."""

    hidden: int
    rank: int
    heads: int
    dim: int
    rotated: int
    top: int

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (
            ("index queries", self.heads * self.dim),
            ("index key", self.dim),
            ("index weights", self.heads),
        )

    def keys(self, name: str) -> PagedRows:
        return PagedRows(f"{name} index", self.dim)


class TokenIndexer:
    """score(t) = Σ_h w_h relu(q_h · k_t / √dim); every rank computes all of it."""

    def __init__(self, source: WeightSource, name: str, shape: IndexerShape) -> None:
        self._shape = shape
        hidden, dim = shape.hidden, shape.dim

        def matrix(part: str, rows: int, columns: int) -> Tensor:
            return source.matrix("indexer", [Linear(f"{name}.{part}", rows, columns)])

        self._queries = matrix("wq_b", shape.heads * dim, shape.rank)
        self._keys = matrix("wk", dim, hidden)
        self._weights = matrix("weights_proj", shape.heads, hidden)
        self._norm, self._bias = (
            source.vector("indexer", f"{name}.k_norm.{part}", dim) for part in ("weight", "bias")
        )

    def prepare(self, ops: ExtendedBackend, angles: Tensor, store: object) -> None:
        """Give the indexer its rotary table and its rows of the cache, once."""
        shape = self._shape
        self._ops, self._store = ops, store
        half = shape.rotated // 2
        self._turn_queries = Rotation(angles, shape.heads, shape.dim, 0, half, pairs=True)
        self._turn_key = Rotation(angles, 1, shape.dim, 0, half, pairs=True)
        self._index = Index(shape.heads, shape.dim, shape.top, shape.dim**-0.5, shape.heads**-0.5)

    def forward(
        self,
        rows: Rows,
        work: Workspace,
        normed: Tensor,
        ranked: Tensor,
        norm: Norm,
        selection: Selection,
    ) -> None:
        """Keep the keys of `normed` rows, and select for the queries that norm(`ranked`) makes."""
        ops, held = self._ops, work.extra
        key, queries, weights = (held[f"index {part}"] for part in ("key", "queries", "weights"))
        ops.linear(rows, normed, self._keys, key)
        ops.layer_norm(rows, key, self._norm, self._bias, KEY_EPS, key)
        ops.rotate(rows, key, self._turn_key)
        ops.store_rows(rows, key, self._store)
        ops.linear(rows, ranked, self._queries, queries, norm=norm)
        ops.rotate(rows, queries, self._turn_queries)
        ops.linear(rows, normed, self._weights, weights)
        ops.index_select(rows, queries, weights, self._index, self._store, selection)
