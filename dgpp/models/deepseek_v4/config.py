"""DeepSeek-V4-Flash's config.json, parsed strictly."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.models.config_fields import (
    MOST,
    SILENT,
    check_range,
    check_rotation,
    check_share,
    read_fields,
    refuse,
)
from dgpp.models.layers.rope import Yarn
from dgpp.models.quantisation import fp8_blocks
from kernels_numba.weights import VECTOR

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "expert_dtype": ("fp4",),
    "norm_topk_prob": (True,),
    "num_key_value_heads": (1,),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "tie_word_embeddings": (False,),
}
# The draft stages are those of compress_ratios; this says 1 whatever they are.
STALE = frozenset({"num_nextn_predict_layers"})
INDEXED = 4
"""The ratio of layers whose entries overlap and are selected by an indexer."""
TILE = 64
"""Values that share a scale in rounded rows of the cache."""
INDEX_TILE = 32
"""The same in rounded index keys and queries."""


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rope_scaling`: of the layers that compress."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    type: str

    @property
    def yarn(self) -> Yarn:
        sizes = (self.original_max_position_embeddings, self.beta_fast, self.beta_slow)
        return Yarn(self.factor, *sizes)


class DeepseekV4Config(msgspec.Struct, frozen=True):
    """The sizes of a deepseek_v4 model, under the names of config.json.

    `rounded`: cached rows are rounded to the codes that the release keeps them in; no file says so.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    swiglu_limit: float
    routed_scaling_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    rounded: bool = True

    @property
    def stages(self) -> int:
        """Draft stages."""
        return len(self.compress_ratios) - self.num_hidden_layers


def exact(config: DeepseekV4Config) -> DeepseekV4Config:
    """The same model with cached rows as they were computed."""
    return msgspec.structs.replace(config, rounded=False)


def _check_layers(config: DeepseekV4Config) -> None:
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    if len(ratios) < layers or any(ratios[layers:]):
        raise refuse("compress_ratios", f"is not {layers} ratios, then zeros for draft stages")
    # Blocks of the cache hold whole groups of every ratio.
    known = {0, *(1 << n for n in range(1, 13))}
    if not known.issuperset(ratios):
        odd = sorted(set(ratios) - known)
        raise refuse("compress_ratios", f"has {odd}, neither 0 nor powers of two from 2 to 4096")
    if not 0 <= config.num_hash_layers <= layers:
        raise refuse("num_hash_layers", f"is {config.num_hash_layers}, not within 0..{layers}")


def _check_drafts(config: DeepseekV4Config) -> None:
    if not config.stages:
        return
    check_range(config, {"dspark_block_size": 64, "dspark_markov_rank": 1 << 14})
    taps = config.dspark_target_layer_ids
    if not taps or sorted(set(taps)) != list(taps) or taps[0] < 0:
        raise refuse("dspark_target_layer_ids", f"is {list(taps)}, not ascending layers")
    if taps[-1] >= config.num_hidden_layers:
        raise refuse("dspark_target_layer_ids", f"has {taps[-1]}, which is no layer")
    if not 0 <= config.dspark_noise_token_id < config.vocab_size:
        raise refuse("dspark_noise_token_id", f"is {config.dspark_noise_token_id}, no token")


def _check(config: DeepseekV4Config) -> None:
    sizes = ("q_lora_rank", "o_lora_rank", "o_groups", "sliding_window", "index_n_heads",
             "index_head_dim", "n_shared_experts")  # fmt: skip
    most = {key: limit for key, limit in MOST.items() if hasattr(config, key)}
    more = {"index_topk": 1 << 20, "hc_mult": 16, "hc_sinkhorn_iters": 1000,
            "moe_intermediate_size": 1 << 24}  # fmt: skip
    check_range(config, {**most, **dict.fromkeys(sizes, 1 << 14), **more})
    _check_layers(config)
    _check_drafts(config)
    check_share(config, "num_attention_heads", "o_groups")
    for field in ("head_dim", "index_head_dim"):
        check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, getattr(config, field))
    for field in ("hidden_size", "head_dim", "q_lora_rank"):
        if getattr(config, field) % VECTOR:
            raise refuse(field, f"is {getattr(config, field)}, not a multiple of {VECTOR}")
    if (config.head_dim - config.qk_rope_head_dim) % TILE:
        raise refuse("head_dim", f"less qk_rope_head_dim is not a multiple of {TILE}")
    dim = config.index_head_dim
    if dim < INDEX_TILE or dim & (dim - 1):
        raise refuse("index_head_dim", f"is {dim}, not a power of two from {INDEX_TILE} on")
    if not 1 <= config.num_experts_per_tok <= config.n_routed_experts <= 1 << 14:
        raise refuse("num_experts_per_tok", f"is not within 1..{config.n_routed_experts}")
    if not 0 < config.rms_norm_eps < 1:
        raise refuse("rms_norm_eps", f"is {config.rms_norm_eps}, not between 0 and 1")
    if config.rope_scaling.type != "yarn":
        raise refuse("rope_scaling.type", f"is {config.rope_scaling.type!r}, not 'yarn'")


def _check_quantisation(found: object) -> None:
    """FP8 in blocks of 128 × 128, whose scales are powers of two; experts are MXFP4."""
    if not isinstance(found, dict):
        raise refuse("quantization_config", "is missing")
    fp8_blocks(found)
    if found.get("modules_to_not_convert"):
        raise refuse("quantization_config.modules_to_not_convert", "is not empty")
    if found.get("scale_fmt") != "ue8m0":
        raise refuse("quantization_config.scale_fmt", f"is {found.get('scale_fmt')!r}, not 'ue8m0'")


def parse(config: dict[str, Any]) -> DeepseekV4Config:
    """DeepseekV4Config from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    _check_quantisation(raw.pop("quantization_config", None))
    parsed = read_fields(
        raw,
        DeepseekV4Config,
        "deepseek_v4",
        fixed=FIXED,
        silent=SILENT | STALE,
        derived={"rounded": True},
    )
    _check(parsed)
    return parsed
