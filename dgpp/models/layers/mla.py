"""Multi-head latent attention in absorbed form, over the positions that an indexer selects.

A position leaves one row [latent | rotated key part] for all heads. A head's query is taken into
the latent space, where scores and sums are computed; the sums are taken back to the head's values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import structs

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.extended import extended
from dgpp.models.layers.indexer import Indexer
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import Kept, PagedRows
from kernels_numba.backend import Backend, Norm, Rows, Tensor
from kernels_numba.extended import LatentAttention, Rotation, Selection
from kernels_numba.weights import VECTOR


@dataclass(frozen=True, slots=True)
class MlaShape:
    """Sizes under config.json's names, shortened; `rope` values of a head turn in pairs, 0 for
    none. `eps` is the input norm's, `rank_eps` the two low-rank norms'."""

    hidden: int
    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    values: int
    eps: float
    rank_eps: float

    def own(self, shard: Shard) -> MlaShape:
        """One rank's heads; the latents are every rank's."""
        return replace(self, heads=shard.part(self.heads, "config.json's num_attention_heads"))

    @property
    def head(self) -> int:
        """Values of a head's query as it is projected."""
        return self.nope + self.rope

    @property
    def row(self) -> int:
        """Values that a position leaves."""
        return self.kv_rank + self.rope

    @property
    def padded(self) -> int:
        """Values of a head's query in the latent space, padded to whole vectors."""
        return -(-self.row // VECTOR) * VECTOR

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`; `self` is a rank's own shape."""
        return (
            ("mla rank", self.q_rank),
            ("mla heads", self.heads * self.head),
            ("mla row", self.row),
            ("mla latent", self.row),
            ("mla queries", self.heads * self.padded),
            ("mla sums", self.heads * self.kv_rank),
        )

    def latents(self, name: str) -> PagedRows:
        return PagedRows(f"{name} latent", self.row, kept=Kept.LATENT, plain=self.rope)


class MlaAttention:
    """x += o_proj(attention(norm(x))). Without an `indexer` of its own a layer attends to what the
    last one before it selected."""

    def __init__(
        self,
        source: WeightSource,
        name: str,
        norm: str,
        shape: MlaShape,
        format_of: Callable[[str], Format],
        indexer: Indexer | None,
    ) -> None:
        self.shape = own = shape.own(source.shard)
        self.indexer = indexer
        hidden, heads, head = shape.hidden, shape.heads, shape.nope + shape.values

        def linear(part: str, rows: int, columns: int, split: Split) -> Linear:
            module = f"{name}.{part}"
            return Linear(module, rows, columns, format_of(module), split=split)

        def vector(part: str, size: int) -> Norm:
            weight = source.vector("norms", f"{name}.{part}.weight", size)
            return Norm(weight, shape.rank_eps)

        self._norm = Norm(source.vector("norms", f"{norm}.weight", hidden), shape.eps)
        self._query_norm = vector("q_a_layernorm", shape.q_rank)
        self._latent_norm = vector("kv_a_layernorm", shape.kv_rank)
        down = linear("q_a_proj", shape.q_rank, hidden, Split.NONE)
        up = linear("q_b_proj", heads * shape.head, shape.q_rank, Split.ROWS)
        row = linear("kv_a_proj_with_mqa", shape.row, hidden, Split.NONE)
        output = linear("o_proj", hidden, heads * shape.values, Split.COLUMNS)
        self._down, self._up, self._row, self._output = (
            source.matrix("attention", [part]) for part in (down, up, row, output)
        )
        ours = source.shard.span(Split.ROWS, heads, name)
        keys = tuple((at * head, shape.nope) for at in ours)
        values = tuple((at * head + shape.nope, shape.values) for at in ours)
        absorbed = linear("kv_b_proj", heads * head, shape.kv_rank, Split.TAKEN)
        taken = structs.replace(absorbed, take=(*keys, *values))
        self._absorbed = source.matrix("attention", [taken])
        self._key_rows = own.heads * shape.nope

    def prepare(self, ops: Backend, angles: Tensor, latents: object, keys: object) -> None:
        """Give the layer its rotary table and its rows of the cache, `keys` its indexer's, once."""
        shape = self.shape
        self._ops, self._store = extended(ops), latents
        ours = shape.heads
        self._keys = ops.cut(self._absorbed, 0, self._key_rows)
        self._values = ops.cut(self._absorbed, self._key_rows, ours * shape.values)
        half = shape.rope // 2
        self._turn_queries = Rotation(angles, ours, shape.head, shape.nope, half, pairs=True)
        self._turn_row = Rotation(angles, 1, shape.row, shape.kv_rank, half, pairs=True)
        scale = shape.head**-0.5
        self._attention = LatentAttention(ours, shape.row, shape.kv_rank, scale)
        if self.indexer is not None:
            self.indexer.prepare(self._ops, angles, keys)

    def forward(self, rows: Rows, work: Workspace, selection: Selection) -> None:
        ops, shape, held = self._ops, self.shape, work.extra
        rank, heads, row, latent, queries, sums = (
            held[f"mla {part}"] for part in ("rank", "heads", "row", "latent", "queries", "sums")
        )
        ops.norm(rows, work.x, self._norm, work.normed)
        ops.linear(rows, work.normed, self._down, rank)
        ops.linear(rows, rank, self._up, heads, norm=self._query_norm)
        ops.linear(rows, work.normed, self._row, row)
        if self.indexer is not None:
            self.indexer.forward(rows, work, work.normed, rank, self._query_norm, selection)
        ops.norm_part(rows, row, self._latent_norm, latent)
        if shape.rope:
            rope = (shape.row, shape.kv_rank)
            ops.copy_heads(rows, row, rope, 1, shape.rope, latent, rope)
            ops.rotate(rows, latent, self._turn_row)
            ops.rotate(rows, heads, self._turn_queries)
        ops.store_rows(rows, latent, self._store)
        ops.grouped_sum(rows, heads, shape.head, self._keys, shape.heads, queries, shape.padded)
        if shape.rope:
            source, target = (shape.head, shape.nope), (shape.padded, shape.kv_rank)
            ops.copy_heads(rows, heads, source, shape.heads, shape.rope, queries, target)
        ops.attend_latent(rows, queries, self._attention, self._store, selection, sums)
        ops.grouped_linear(rows, sums, self._values, shape.heads, work.attended)
        fold = work.fold
        ops.linear(rows, work.attended, self._output, fold.target, add=fold.add)
        fold.finish(rows)
