"""One GLM-4.7 layer: attention, then a dense MLP or a mixture of experts."""

from __future__ import annotations

from dgpp.models.glm.layers import feed_forward
from dgpp.models.glm.shapes import shared_width
from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.layers.attention import AttentionShape, GqaAttention
from dgpp.models.layers.projections import separate
from dgpp.models.layers.workspace import Workspace, WorkspaceShape
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from kernels_numba.backend import Backend, Rows


def attention_shape(config: Glm4MoeConfig) -> AttentionShape:
    return AttentionShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rotated=config.rotated,
        eps=config.rms_norm_eps,
        bias=config.attention_bias,
        qk_norm=config.use_qk_norm,
    )


def workspace_shape(config: Glm4MoeConfig, shard: Shard, *, drafts: bool) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = attention_shape(config).own(shard)
    has_moe = not config.dense(config.num_hidden_layers - 1) or drafts
    shared = shared_width(config) if has_moe else 0
    dense = config.intermediate_size if config.first_k_dense_replace else 0
    return WorkspaceShape(
        hidden=config.hidden_size,
        qkv=own.qkv,
        queries=own.queries,
        attended=own.attended,
        intermediate=max(dense, shared) // shard.world,
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=config.num_experts_per_tok if has_moe else 0,
    )


class Glm4MoeLayer:
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: Glm4MoeConfig, source: WeightSource, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        name, shape = f"{prefix}.self_attn", attention_shape(config)
        stored = config.format(f"{name}.q_proj")
        qkv = separate(name, shape.sizes, stored)
        self.attention = GqaAttention(source, prefix, shape, qkv, stored)
        # Scales of a quantised cache, which the full-precision cache has no use for.
        source.ignore(f"{name}.k_proj.k_scale")
        source.ignore(f"{name}.v_proj.v_scale")
        self._mlp = feed_forward(config, source, prefix, layer)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.attention.forward(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)
