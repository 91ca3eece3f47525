"""Grouped-query attention: paged or windowed, with bias, head norms, rotary, sinks, output gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.block_indexer import BlockIndexer
from dgpp.models.layers.extended import extended
from dgpp.models.layers.projections import HeadSizes, shared_out
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import PagedPlane, Ring
from kernels_numba.backend import Attention, Backend, Norm, Rows, Tensor, kv_row_width
from kernels_numba.weights import VECTOR

RING_SLACK = 32
"""Rows of a ring beyond its window: as many may be drafted in vain before one is missed."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a layer's attention is.

    rotated      leading dimensions of each head that turn; the rest pass through
    value_dim    values of a head's value; 0: as many as of its key
    value_scale  what values are kept times
    window       positions that a query sees, its own included; 0: all
    sinks        a logit per head for a key without value
    gated        the output is multiplied by the sigmoid of a gate that stands behind the queries
    centred      weights of head and input norms are stored less one
    normed       the input has a norm of its own
    shared_kv    several ranks may have the same head of keys, where there are too few
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    eps: float
    bias: bool = False
    qk_norm: bool = False
    value_dim: int = 0
    value_scale: float = 1.0
    window: int = 0
    sinks: bool = False
    gated: bool = False
    centred: bool = False
    normed: bool = True
    shared_kv: bool = False

    def own(self, shard: Shard) -> AttentionShape:
        """One rank's heads. Raises ConfigError where they cannot be shared out equally."""
        what = "config.json's num_key_value_heads"
        own = replace(self, heads=shard.part(self.heads, "config.json's num_attention_heads"))
        if self.shared_kv:
            return replace(own, kv_heads=shared_out(self.kv_heads, shard, what))
        return replace(own, kv_heads=shard.part(self.kv_heads, what))

    @property
    def values(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def gap(self) -> int:
        """Values between q and k in a row of projections."""
        return self.heads * self.head_dim if self.gated else 0

    @property
    def qkv(self) -> int:
        """Values of a row of projections [q | gate | k | v]."""
        keys = (self.heads + self.kv_heads) * self.head_dim
        return keys + self.gap + self.kv_heads * self.values

    @property
    def queries(self) -> int:
        """Values of a row of queries, heads padded to whole vectors."""
        return self.heads * (-(-self.head_dim // VECTOR) * VECTOR)

    @property
    def attended(self) -> int:
        return self.heads * self.values

    @property
    def row(self) -> int:
        """Values of a row of keys and values side by side; 0 where they are paged."""
        return kv_row_width(self.kv_heads, self.head_dim, self.values) if self.window else 0

    @property
    def sizes(self) -> HeadSizes:
        return HeadSizes(self.hidden, self.heads, self.kv_heads, self.head_dim, self.values)

    def plane(self, name: str) -> PagedPlane:
        """The state of a layer without a window; `self` is a rank's own shape."""
        return PagedPlane(name, self.kv_heads, self.head_dim, self.value_dim)

    def ring(self, name: str) -> Ring:
        """The state of a layer with a window; `self` is a rank's own shape."""
        return Ring(name, self.window + RING_SLACK, self.row)


class GqaAttention:
    """x += o_proj(attention(norm(x))).

    Keys and values of every row go to the layer's plane, with a window to its ring. In a world a
    rank has its share of the heads. `shape` is the whole layer's, `qkv` are its projections. With
    an `indexer` rows attend to the positions that it selects.
    """

    def __init__(
        self,
        source: WeightSource,
        prefix: str,
        shape: AttentionShape,
        qkv: Sequence[Linear],
        output: Format,
        indexer: BlockIndexer | None = None,
    ) -> None:
        self.indexer = indexer
        self.shape = shape.own(source.shard)
        hidden, dim, name = shape.hidden, shape.head_dim, f"{prefix}.self_attn"
        plus = 1.0 if shape.centred else 0.0
        self._norm: Norm | None = None
        if shape.normed:
            norm = source.vector("norms", f"{prefix}.input_layernorm.weight", hidden, plus=plus)
            self._norm = Norm(norm, shape.eps)
        self._qkv = source.matrix("attention", qkv)
        self._bias: Tensor | None = None
        if shape.bias:
            biases = [(f"{linear.name}.bias", linear.rows) for linear in qkv]
            self._bias = source.joined("attention", biases)
        o_proj = Linear(f"{name}.o_proj", hidden, shape.attended, output, split=Split.COLUMNS)
        self._output = source.matrix("attention", [o_proj])
        self._head_norms: list[Norm] = []
        if shape.qk_norm:
            self._head_norms = [
                Norm(source.vector("norms", f"{name}.{p}_norm.weight", dim, plus=plus), shape.eps)
                for p in ("q", "k")
            ]
        self._sinks: Tensor | None = None
        if shape.sinks:
            sinks = [(f"{name}.attention_sink_bias", shape.heads)]
            self._sinks = source.joined("attention", sinks)

    def prepare(
        self, ops: Backend, angles: Tensor, state: object, indexed: tuple[object, ...] = ()
    ) -> None:
        """Give the layer its rotary table, its plane or ring, and what its indexer keeps, once."""
        shape = self.shape
        self._state = state
        more = shape.window or shape.gated or self.indexer is not None
        self._extended = extended(ops) if more else None
        if self.indexer is not None:
            self.indexer.prepare(extended(ops), angles, *indexed)
        q_norm, k_norm = self._head_norms or (None, None)
        self._attention = Attention(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.head_dim**-0.5,
            angles,
            q_norm=q_norm,
            k_norm=k_norm,
            value_dim=shape.value_dim,
            value_scale=shape.value_scale,
            gap=shape.gap,
            window=shape.window,
            sinks=self._sinks,
        )

    def forward(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        ops.linear(rows, work.x, self._qkv, work.qkv, norm=self._norm, bias=self._bias)
        if self.shape.window:
            self._attend_window(rows, work)
        else:
            attention, plane, queries = self._attention, self._state, work.queries
            if self.indexer is not None:
                ops.rotary_cache_write(rows, work.qkv, attention, plane, queries)
                self._attend_selected(self.indexer, rows, work)
            else:
                ops.attend_projected(rows, work.qkv, attention, plane, queries, work.attended)
        if self.shape.gated and self._extended is not None:
            at = self.shape.heads * self.shape.head_dim
            self._extended.gate(rows, work.attended, work.qkv, at)
        fold = work.fold
        ops.linear(rows, work.attended, self._output, fold.target, add=fold.add)
        fold.finish(rows)

    def _attend_selected(self, indexer: BlockIndexer, rows: Rows, work: Workspace) -> None:
        ops, attention, plane = self._extended, self._attention, self._state
        assert ops is not None, "prepare() was not called"
        indexer.forward(rows, work, work.x)
        ops.attend_selected(rows, work.queries, attention, plane, work.selection, work.attended)

    def _attend_window(self, rows: Rows, work: Workspace) -> None:
        ops, attention, ring = self._extended, self._attention, self._state
        assert ops is not None, "prepare() was not called"
        ops.split_rows(rows, work.qkv, attention, work.queries, work.kv)
        ops.attend_window(rows, work.queries, attention, work.kv, ring, work.attended)
        ops.ring_write(rows, work.kv, ring)
