"""One GLM-4.7 layer: attention, then a dense MLP or a mixture of experts."""

from __future__ import annotations

from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.layers.attention import AttentionShape, GqaAttention
from dgpp.models.layers.mlp import DenseMlp
from dgpp.models.layers.moe import MoeShape, RoutedMoe
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


def moe_shape(config: Glm4MoeConfig) -> MoeShape:
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.n_routed_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=config.n_shared_experts,
        normalise=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        eps=config.rms_norm_eps,
    )


def is_dense(config: Glm4MoeConfig, layer: int) -> bool:
    return layer < config.first_k_dense_replace


def workspace_shape(config: Glm4MoeConfig, shard: Shard, *, drafts: bool) -> WorkspaceShape:
    """Widths of a step's activations on one rank."""
    own = attention_shape(config).own(shard)
    has_moe = not is_dense(config, config.num_hidden_layers - 1) or drafts
    shared = config.moe_intermediate_size * max(1, config.n_shared_experts) if has_moe else 0
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
        if is_dense(config, layer):
            self._mlp: DenseMlp | RoutedMoe = DenseMlp(
                source,
                prefix,
                config.hidden_size,
                config.intermediate_size,
                config.rms_norm_eps,
                config.format(f"{prefix}.mlp.gate_proj"),
            )
        else:
            stored = config.format(f"{prefix}.mlp.experts.0.gate_proj")
            self._mlp = RoutedMoe(source, prefix, layer, moe_shape(config), stored)

    def forward(self, ops: Backend, rows: Rows, work: Workspace, observer: Observer | None) -> None:
        self.attention.forward(ops, rows, work)
        self._mlp.forward(ops, rows, work, observer)
