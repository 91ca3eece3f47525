"""Shapes of the layers that DeepSeek families share, from fields that their configurations have;
what a family has beside them it replaces."""

from __future__ import annotations

from dgpp.models.deepseek.config import INDEX_TILE, SharedRowConfig
from dgpp.models.layers.compressor import CompressorShape
from dgpp.models.layers.dspark import DSparkShape
from dgpp.models.layers.entry_indexer import EntryIndexerShape
from dgpp.models.layers.hyper import HyperShape
from dgpp.models.layers.moe import MoeShape
from dgpp.models.layers.shared_key import SharedKeyShape
from kernels_numba.backend import Scores
from kernels_numba.extended import Code, Rounding


def rounding(config: SharedRowConfig, code: Code, width: int, tile: int) -> Rounding | None:
    """Of the first `width` values of a cached row, `tile` of which share a scale; None where rows
    are kept as they were computed."""
    return Rounding(code, width, tile) if config.rounded else None


def index_rounding(config: SharedRowConfig, heads: int = 1) -> Rounding | None:
    """Of an index key, or of a query of `heads` heads."""
    return rounding(config, Code.FP4_E8M0, heads * config.index_head_dim, INDEX_TILE)


def attention_shape(config: SharedRowConfig) -> SharedKeyShape:
    """Rows are kept as they were computed."""
    return SharedKeyShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        width=config.head_dim,
        rotated=config.qk_rope_head_dim,
        q_rank=config.q_lora_rank,
        groups=config.o_groups,
        group_rank=config.o_lora_rank,
        window=config.sliding_window,
        eps=config.rms_norm_eps,
    )


def compressor_shape(config: SharedRowConfig, name: str, width: int, every: int) -> CompressorShape:
    """A row of `width` values for `every` tokens, kept as it was computed."""
    return CompressorShape(
        name=name,
        hidden=config.hidden_size,
        width=width,
        every=every,
        rotated=config.qk_rope_head_dim,
        eps=config.rms_norm_eps,
    )


def indexer_shape(config: SharedRowConfig, every: int) -> EntryIndexerShape:
    """There is an entry per `every` tokens."""
    return EntryIndexerShape(
        hidden=config.hidden_size,
        rank=config.q_lora_rank,
        heads=config.index_n_heads,
        dim=config.index_head_dim,
        rotated=config.qk_rope_head_dim,
        top=config.index_topk,
        every=every,
        rounding=index_rounding(config, config.index_n_heads),
    )


def hyper_shape(config: SharedRowConfig) -> HyperShape:
    return HyperShape(
        streams=config.hc_mult,
        width=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
    )


def moe_shape(config: SharedRowConfig, shared: int) -> MoeShape:
    """Experts chosen by the biased root of their softplus, beside `shared` ones."""
    return MoeShape(
        hidden=config.hidden_size,
        experts=config.n_routed_experts,
        top=config.num_experts_per_tok,
        intermediate=config.moe_intermediate_size,
        shared=shared,
        normalise=True,
        scale=config.routed_scaling_factor,
        eps=config.rms_norm_eps,
        limit=config.swiglu_limit,
        scores=Scores.SQRT_SOFTPLUS,
        weigh_inside=True,
    )


def dspark_shape(config: SharedRowConfig) -> DSparkShape:
    return DSparkShape(
        hidden=config.hidden_size,
        streams=config.hc_mult,
        vocab=config.vocab_size,
        taps=config.dspark_target_layer_ids,
        block=config.dspark_block_size,
        noise=config.dspark_noise_token_id,
        rank=config.dspark_markov_rank,
        eps=config.rms_norm_eps,
    )
