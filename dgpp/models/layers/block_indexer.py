"""Which blocks of tokens a query attends to: index heads score a key per block, the best are taken.

A block's key is the norm of its tokens' mean, turned by the position of its first; the tokens after
the last whole block are always attended to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgpp.models.layers.indexer import IndexerShape
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import Ring
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import ExtendedBackend, Index, Rotation


@dataclass(frozen=True, slots=True)
class BlockIndexShape(IndexerShape):
    """`rank` is the indexer's input; its norms' weights are stored less one."""

    eps: float = 1e-6

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        return (
            ("index qk", (self.heads + 1) * self.dim),
            ("index queries", self.heads * self.dim),
            ("index key", self.dim),
            ("index mean", self.dim),
        )

    def ring(self, name: str) -> Ring:
        """Keys of the tokens that no block's key stands for yet."""
        return Ring(f"{name} index", self.every - 1, self.dim, wide=True)


class BlockIndexer:
    """score(block) = Σ_h relu(q_h · k / √dim). Every rank computes all of it."""

    def __init__(self, source: WeightSource, name: str, shape: BlockIndexShape) -> None:
        self._shape = shape
        width = (shape.heads + 1) * shape.dim
        project = Linear(f"{name}.index_qk_proj", width, shape.rank)
        self._project = source.matrix("indexer", [project])
        names = (f"{name}.{side}_layernorm.weight" for side in ("q", "k"))
        self._query_norm, self._key_norm = (
            Norm(source.vector("indexer", weight, shape.dim, plus=1.0), shape.eps)
            for weight in names
        )
        scale = shape.dim**-0.5
        blocks = shape.top // shape.every
        self._index = Index(shape.heads, shape.dim, blocks, scale, 1.0, shape.every)

    def prepare(self, ops: ExtendedBackend, angles: Tensor, store: object, ring: object) -> None:
        """Give the indexer its rotary table, blocks' keys and the ring of tokens' keys, once."""
        shape, half = self._shape, self._shape.rotated // 2
        self._ops, self._store, self._ring = ops, store, ring
        self._turn_queries = Rotation(angles, shape.heads, shape.dim, 0, half)
        self._turn_key = Rotation(angles, 1, shape.dim, 0, half, every=shape.every)
        self._alike = ops.vector(np.ones(shape.heads, np.float32))
        self._blocks = ops.selection(self._index.top)

    def forward(self, rows: Rows, work: Workspace, x: Tensor) -> None:
        """Keep the keys of rows x, and select for them in work.selection."""
        ops, shape, held = self._ops, self._shape, work.extra
        both, queries, key, mean = (
            held[f"index {part}"] for part in ("qk", "queries", "key", "mean")
        )
        ops.linear(rows, x, self._project, both)
        ops.group_norm(rows, both, self._query_norm, shape.heads, queries)
        ops.rotate(rows, queries, self._turn_queries)
        before = shape.heads * shape.dim
        ops.copy_heads(rows, both, (before + shape.dim, before), 1, shape.dim, key, (shape.dim, 0))
        ops.mean_rows(rows, key, shape.every, self._ring, mean)
        ops.ring_write(rows, key, self._ring)
        ops.group_norm(rows, mean, self._key_norm, 1, key)
        ops.rotate(rows, key, self._turn_key)
        ops.store_rows(rows, key, self._store, every=shape.every)
        ops.index_select(rows, queries, self._alike, self._index, self._store, self._blocks)
        ops.unfold(rows, self._blocks, shape.every, work.selection)
