"""Which positions a query attends to: index heads score every cached key, the best are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import Kept, PagedRows, Ring
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import ExtendedBackend, Index, Pooling, Rotation, Selection

KEY_EPS = 1e-6
"""Of the keys' layer norm."""


@dataclass(frozen=True, slots=True)
class IndexerShape:
    """`rotated` leading values of queries and keys turn in pairs, 0 for none; `rank` is the
    queries' input. `dim` is whole vectors. `every` tokens share a key; `top` tokens are taken."""

    hidden: int
    rank: int
    heads: int
    dim: int
    rotated: int
    top: int
    every: int = 1

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        held = (
            ("index queries", self.heads * self.dim),
            ("index key", self.dim),
            ("index weights", self.heads),
        )
        pooled = (("index gate", self.dim), ("index pair", 2 * self.dim))
        return held if self.every == 1 else (*held, *pooled)

    @property
    def selected(self) -> int:
        """Most positions that a row attends to: those taken, and what no key stands for yet."""
        return self.top + self.every - 1

    def keys(self, name: str) -> PagedRows:
        return PagedRows(f"{name} index", self.dim, self.every, Kept.INDEX)

    def ring(self, name: str) -> Ring:
        """[key | gate] of the tokens that no pooled key stands for yet."""
        return Ring(f"{name} index", self.every - 1, 2 * self.dim, wide=True)


class Indexer(Protocol):
    """Selects for the rows of a step; what it keeps of them is handed to `prepare`."""

    def prepare(self, ops: ExtendedBackend, angles: Tensor, state: object) -> None:
        """Give the indexer its rotary table and its state, once."""

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


class _Scores:
    """Queries, keys and weights: score(t) = Σ_h w_h relu(q_h · k_t / √dim). Every rank computes all
    of it."""

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
        scale, weight = dim**-0.5, shape.heads**-0.5
        self._index = Index(shape.heads, dim, shape.top // shape.every, scale, weight, shape.every)

    def _key(self, ops: ExtendedBackend, rows: Rows, work: Workspace, normed: Tensor) -> Tensor:
        """The rows' keys, not yet turned."""
        key = work.extra["index key"]
        ops.linear(rows, normed, self._keys, key)
        ops.layer_norm(rows, key, self._norm, self._bias, KEY_EPS, key)
        return key


class TokenIndexer(_Scores):
    """A key per token, turned by its position."""

    def prepare(self, ops: ExtendedBackend, angles: Tensor, state: object) -> None:
        """`state` is the paged rows of the keys."""
        shape = self._shape
        self._ops, self._store = ops, state
        half = shape.rotated // 2
        self._turn_queries = Rotation(angles, shape.heads, shape.dim, 0, half, pairs=True)
        self._turn_key = Rotation(angles, 1, shape.dim, 0, half, pairs=True)

    def forward(
        self,
        rows: Rows,
        work: Workspace,
        normed: Tensor,
        ranked: Tensor,
        norm: Norm,
        selection: Selection,
    ) -> None:
        ops, queries, weights = self._ops, work.extra["index queries"], work.extra["index weights"]
        key = self._key(ops, rows, work, normed)
        ops.rotate(rows, key, self._turn_key)
        ops.store_rows(rows, key, self._store)
        ops.linear(rows, ranked, self._queries, queries, norm=norm)
        ops.rotate(rows, queries, self._turn_queries)
        ops.linear(rows, normed, self._weights, weights)
        ops.index_select(rows, queries, weights, self._index, self._store, selection)


class PoolIndexer(_Scores):
    """A key per pool of tokens, made when the last of them comes: per channel their keys weighted
    by the softmax of their gates. The tokens after the last whole pool are always attended to."""

    def __init__(self, source: WeightSource, name: str, shape: IndexerShape, gate: Linear) -> None:
        super().__init__(source, name, shape)
        self._gate = source.matrix("indexer", [gate])
        places = f"{name}.index_kpool_compress_ape"
        self._places = source.vector("indexer", places, (shape.every, shape.dim))

    def prepare(self, ops: ExtendedBackend, angles: Tensor, state: object) -> None:
        """`state` is (paged rows of the pools' keys, ring of the open pool's tokens)."""
        assert isinstance(state, tuple), "a pool indexer keeps pools and a ring"
        self._ops = ops
        self._store, self._ring = state
        shape = self._shape
        self._pooling = Pooling(shape.dim, shape.every, 1, self._places)
        self._pools = ops.selection(self._index.top)

    def forward(
        self,
        rows: Rows,
        work: Workspace,
        normed: Tensor,
        ranked: Tensor,
        norm: Norm,
        selection: Selection,
    ) -> None:
        ops, held, every = self._ops, work.extra, self._shape.every
        queries, weights, gate, pair = (
            held[f"index {part}"] for part in ("queries", "weights", "gate", "pair")
        )
        key = self._key(ops, rows, work, normed)
        ops.linear(rows, normed, self._gate, gate)
        ops.copy(rows, key, pair)
        ops.copy(rows, gate, pair, at=self._shape.dim)
        ops.pool_rows(rows, pair, self._pooling, self._ring, key)
        ops.store_rows(rows, key, self._store, every=every)
        ops.ring_write(rows, pair, self._ring)
        ops.linear(rows, ranked, self._queries, queries, norm=norm)
        ops.linear(rows, normed, self._weights, weights)
        ops.index_select(rows, queries, weights, self._index, self._store, self._pools)
        ops.unfold(rows, self._pools, every, selection)
