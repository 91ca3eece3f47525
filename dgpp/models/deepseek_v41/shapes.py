"""The shapes of DeepSeek-V4.1-Flash's parts, from its config.json."""

from __future__ import annotations

from dataclasses import replace

from dgpp.models.deepseek import shapes
from dgpp.models.deepseek.shapes import dspark_shape, hyper_shape, indexer_shape
from dgpp.models.deepseek_v41.config import GROUP, DeepseekV41Config
from dgpp.models.deepseek_v41.engram import EngramSizes
from dgpp.models.deepseek_v41.entries import KeyShape
from dgpp.models.layers.compressor import CompressorShape
from dgpp.models.layers.moe import MoeShape
from dgpp.models.layers.ngram import NgramShape
from dgpp.models.layers.shared_key import SharedKeyShape
from dgpp.models.layers.workspace import WorkspaceShape
from dgpp.models.shard import Shard
from kernels_numba.extended import Code

ENTRY_GROUP = 16
"""Values of an entry that share a scale in the cache."""


def attention_shape(config: DeepseekV41Config, *, floored: bool) -> SharedKeyShape:
    rounding = shapes.rounding(config, Code.FP8_E8M0, config.head_dim, GROUP)
    return replace(shapes.attention_shape(config), rounding=rounding, floored=floored)


def entry_shape(config: DeepseekV41Config, ratio: int) -> CompressorShape:
    shape = shapes.compressor_shape(config, f"entry {ratio}", config.head_dim, ratio)
    rounding = shapes.rounding(config, Code.FP4_E4M3, config.head_dim, ENTRY_GROUP)
    return replace(shape, rounding=rounding)


def key_shape(config: DeepseekV41Config) -> KeyShape:
    rounding = shapes.index_rounding(config)
    return KeyShape(config.index_head_dim, config.qk_rope_head_dim, config.rms_norm_eps, rounding)


def engram_sizes(config: DeepseekV41Config) -> EngramSizes:
    return EngramSizes(config.hidden_size, config.hc_mult, config.rms_norm_eps)


def moe_shape(config: DeepseekV41Config, *, draft: bool) -> MoeShape:
    """Of a layer's experts, or a draft stage's."""
    shape = shapes.moe_shape(config, shared=1)
    if not draft:
        return shape
    experts, top = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
    return replace(shape, experts=experts, top=top)


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
