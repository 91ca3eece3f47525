"""The shapes of DeepSeek-V4.1-Flash's parts, from its config.json."""

from __future__ import annotations

from dgpp.models.deepseek_v41.config import GROUP, DeepseekV41Config
from dgpp.models.deepseek_v41.engram import EngramSizes
from dgpp.models.deepseek_v41.entries import KeyShape
from dgpp.models.layers.compressor import CompressorShape
from dgpp.models.layers.dspark import DSparkShape
from dgpp.models.layers.entry_indexer import EntryIndexerShape
from dgpp.models.layers.hyper import HyperShape
from dgpp.models.layers.moe import MoeShape
from dgpp.models.layers.ngram import NgramShape
from dgpp.models.layers.shared_key import SharedKeyShape
from dgpp.models.layers.workspace import WorkspaceShape
from dgpp.models.shard import Shard
from kernels_numba.backend import Scores
from kernels_numba.extended import Code, Rounding

ENTRY_GROUP = 16
"""Values of an entry that share a scale in the cache."""


def attention_shape(config: DeepseekV41Config, *, floored: bool) -> SharedKeyShape:
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
        rounding=Rounding(Code.FP8_E8M0, config.head_dim, GROUP) if config.rounded else None,
        floored=floored,
    )


def entry_shape(config: DeepseekV41Config, ratio: int) -> CompressorShape:
    rounding = Rounding(Code.FP4_E4M3, config.head_dim, ENTRY_GROUP)
    return CompressorShape(
        name=f"entry {ratio}",
        hidden=config.hidden_size,
        width=config.head_dim,
        every=ratio,
        rotated=config.qk_rope_head_dim,
        eps=config.rms_norm_eps,
        rounding=rounding if config.rounded else None,
    )


def _index_rounding(config: DeepseekV41Config, heads: int) -> Rounding | None:
    width = heads * config.index_head_dim
    return Rounding(Code.FP4_E8M0, width, GROUP) if config.rounded else None


def key_shape(config: DeepseekV41Config) -> KeyShape:
    rounding = _index_rounding(config, 1)
    return KeyShape(config.index_head_dim, config.qk_rope_head_dim, config.rms_norm_eps, rounding)


def indexer_shape(config: DeepseekV41Config, ratio: int) -> EntryIndexerShape:
    return EntryIndexerShape(
        hidden=config.hidden_size,
        rank=config.q_lora_rank,
        heads=config.index_n_heads,
        dim=config.index_head_dim,
        rotated=config.qk_rope_head_dim,
        top=config.index_topk,
        every=ratio,
        rounding=_index_rounding(config, config.index_n_heads),
    )


def hyper_shape(config: DeepseekV41Config) -> HyperShape:
    return HyperShape(
        streams=config.hc_mult,
        width=config.hidden_size,
        norm_eps=config.rms_norm_eps,
        eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
    )


def engram_sizes(config: DeepseekV41Config) -> EngramSizes:
    return EngramSizes(config.hidden_size, config.hc_mult, config.rms_norm_eps)


def moe_shape(config: DeepseekV41Config, *, draft: bool) -> MoeShape:
    """Of a layer's experts, or a draft stage's."""
    experts, top = config.n_routed_experts, config.num_experts_per_tok
    if draft:
        experts, top = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
    return MoeShape(
        hidden=config.hidden_size,
        experts=experts,
        top=top,
        intermediate=config.moe_intermediate_size,
        shared=1,
        normalise=True,
        scale=config.routed_scaling_factor,
        eps=config.rms_norm_eps,
        limit=config.swiglu_limit,
        scores=Scores.SQRT_SOFTPLUS,
        weigh_inside=True,
    )


def dspark_shape(config: DeepseekV41Config) -> DSparkShape:
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


def workspace_shape(
    config: DeepseekV41Config, shard: Shard, ngrams: NgramShape | None, *, drafts: bool
) -> WorkspaceShape:
    """Widths of a step's activations on one rank; `ngrams` is of any layer that looks rows up."""
    own = attention_shape(config, floored=False).own(shard)
    ratios = sorted(set(config.compress_ratios) - {0})
    entries = [row for ratio in ratios for row in entry_shape(config, ratio).rows]
    hyper = hyper_shape(config)
    extra = [*own.rows, *hyper.rows, ("hyper next", hyper.mixes), *entries]
    if ratios:
        extra += [*key_shape(config).rows, *indexer_shape(config, 1).rows]
    if ngrams is not None:
        extra += [*ngrams.rows, ("engram kv", engram_sizes(config).kv)]
    if drafts:
        extra += dspark_shape(config).rows
    return WorkspaceShape(
        hidden=config.hidden_size,
        attended=own.attended,
        intermediate=shard.part(
            config.moe_intermediate_size, "config.json's moe_intermediate_size"
        ),
        partial=config.hidden_size if shard.world > 1 else 0,
        experts_per_token=max(config.num_experts_per_tok, config.dspark_num_experts_per_tok),
        selected=config.index_topk if ratios else 0,
        streams=config.hc_mult,
        extra=tuple(extra),
    )
