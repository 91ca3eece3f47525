"""Grouped-query attention with optional bias, per-head q/k norm and partial half-split rotary."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear, WeightSource
from kernels_numba.backend import Attention, Backend, Norm, Plane, Rows, Tensor


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """`rotated` leading dimensions of each head turn; the rest pass through."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotated: int
    eps: float
    bias: bool
    qk_norm: bool

    def own(self, shard: Shard) -> AttentionShape:
        """One rank's heads. Raises ConfigError where they cannot be shared out equally."""
        return replace(
            self,
            heads=shard.part(self.heads, "config.json's num_attention_heads"),
            kv_heads=shard.part(self.kv_heads, "config.json's num_key_value_heads"),
        )

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


class GqaAttention:
    """x += o_proj(attention(norm(x))). Keys and values of every row go to the layer's plane.

    In a world a rank has its share of the heads. `shape` is the whole layer's.
    """

    def __init__(
        self, source: WeightSource, prefix: str, shape: AttentionShape, stored: Format
    ) -> None:
        self._shape = shape.own(source.shard)
        hidden, dim = shape.hidden, shape.head_dim
        sizes = {"q": shape.heads * dim, "k": shape.kv_heads * dim, "v": shape.kv_heads * dim}
        name = f"{prefix}.self_attn"
        self._norm_weight = source.vector("norms", f"{prefix}.input_layernorm.weight", hidden)
        self._qkv = source.matrix(
            "attention",
            [
                Linear(f"{name}.{p}_proj", n, hidden, stored, split=Split.ROWS)
                for p, n in sizes.items()
            ],
        )
        self._bias: Tensor | None = None
        if shape.bias:
            biases = [(f"{name}.{p}_proj.bias", n) for p, n in sizes.items()]
            self._bias = source.joined("attention", biases)
        output = Linear(f"{name}.o_proj", hidden, shape.heads * dim, stored, split=Split.COLUMNS)
        self._output = source.matrix("attention", [output])
        self._qk_norms: list[Tensor] = []
        if shape.qk_norm:
            self._qk_norms = [
                source.vector("norms", f"{name}.{p}_norm.weight", dim) for p in ("q", "k")
            ]
        # Scales of a quantised cache, which the full-precision cache has no use for.
        source.ignore(f"{name}.k_proj.k_scale")
        source.ignore(f"{name}.v_proj.v_scale")

    def prepare(self, angles: Tensor, plane: Plane) -> None:
        """Give the layer its rotary table and its part of the cache, once."""
        shape = self._shape
        norms: list[Norm | None] = [None, None]
        if self._qk_norms:
            norms = [Norm(weight, shape.eps) for weight in self._qk_norms]
        self._plane = plane
        self._norm = Norm(self._norm_weight, shape.eps)
        self._attention = Attention(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.head_dim**-0.5,
            angles,
            q_norm=norms[0],
            k_norm=norms[1],
        )

    def forward(self, ops: Backend, rows: Rows, work: Workspace) -> None:
        ops.linear(rows, work.x, self._qkv, work.qkv, norm=self._norm, bias=self._bias)
        ops.rotary_cache_write(rows, work.qkv, self._attention, self._plane, work.queries)
        ops.attend_paged(rows, work.queries, self._attention, self._plane, work.attended)
        fold = work.fold
        ops.linear(rows, work.attended, self._output, fold.target, add=fold.add)
        fold.finish(rows)
