"""Shapes of the layers that GLM families share, from fields that all their configurations have."""

from __future__ import annotations

from typing import Protocol

from dgpp.checkpoint.formats import Format
from dgpp.models.glm.config import LatentConfig
from dgpp.models.layers.indexer import IndexerShape
from dgpp.models.layers.mla import MlaShape
from dgpp.models.layers.moe import MoeShape


class GlmConfig(Protocol):
    """What every GLM configuration says of its layers."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def n_routed_experts(self) -> int: ...
    @property
    def num_experts_per_tok(self) -> int: ...
    @property
    def n_shared_experts(self) -> int: ...
    @property
    def norm_topk_prob(self) -> bool: ...
    @property
    def routed_scaling_factor(self) -> float: ...
    @property
    def num_nextn_predict_layers(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...

    def dense(self, layer: int) -> bool:
        """Whether a layer has a plain MLP."""

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""


def moe_shape(config: GlmConfig, limit: float = 0.0) -> MoeShape:
    """Experts chosen by a biased sigmoid; a `limit` above 0 bounds gate and up."""
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.n_routed_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=config.n_shared_experts,
        normalise=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        eps=config.rms_norm_eps,
        limit=limit,
    )


def shared_width(config: GlmConfig) -> int:
    """Inner values of the shared experts together, of one expert where none is shared."""
    return config.moe_intermediate_size * max(1, config.n_shared_experts)


def mla_shape(config: LatentConfig, rope: int, rank_eps: float) -> MlaShape:
    """`rope` values of a head turn; `rank_eps` is that of the low-rank norms."""
    return MlaShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        q_rank=config.q_lora_rank,
        kv_rank=config.kv_lora_rank,
        nope=config.qk_nope_head_dim,
        rope=rope,
        values=config.v_head_dim,
        eps=config.rms_norm_eps,
        rank_eps=rank_eps,
    )


def indexer_shape(config: LatentConfig, rotated: int, every: int = 1) -> IndexerShape:
    """`rotated` values of a key turn; `every` tokens share one."""
    return IndexerShape(
        hidden=config.hidden_size,
        rank=config.q_lora_rank,
        heads=config.index_n_heads,
        dim=config.index_head_dim,
        rotated=rotated,
        top=config.index_topk,
        every=every,
    )
