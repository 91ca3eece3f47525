"""DeepSeek-V4.1-Flash's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dgpp.models.config_fields import (
    MOST,
    check_range,
    check_rotation,
    check_share,
    read_fields,
    refuse,
    text_fields,
)
from dgpp.models.layers.rope import Yarn
from kernels_numba.weights import VECTOR

OUTER = frozenset({"image_token_id", "vision_config"})
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "num_key_value_heads": (1,),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True,),
    "n_shared_experts": (1,),
    "tie_word_embeddings": (False,),
}
QUANTISATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
RATIOS = (0, 1, 2)
GROUP = 32
"""Values that share a scale in rows of the cache."""


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rope_scaling`: of the layers that compress."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    rope_type: str = "yarn"

    @property
    def yarn(self) -> Yarn:
        sizes = (self.original_max_position_embeddings, self.beta_fast, self.beta_slow)
        return Yarn(self.factor, *sizes)


class DeepseekV41Config(msgspec.Struct, frozen=True):
    """The sizes of a deepseek_v41 text model, under the names of config.json.

    `rounded`: cached rows are rounded to the codes that the release keeps them in; no file says so.
    `image_token_id` stands beside the text model's fields; -1 where there is none.
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
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    swiglu_limit: float
    routed_scaling_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    image_token_id: int = -1
    rounded: bool = True

    @property
    def decoder(self) -> int:
        """The first layer of the decoder half, which bounded prefill runs over a window only."""
        return self.candidate_source_layer_id

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed rows `layer` reads; it has some."""
        return max(source for source in self.kv_source_layer_ids if source <= layer)


def exact(config: DeepseekV41Config) -> DeepseekV41Config:
    """The same model with cached rows as they were computed."""
    return msgspec.structs.replace(config, rounded=False)


def _ascending(ids: Sequence[int], below: int) -> bool:
    return sorted(set(ids)) == list(ids) and all(0 <= at < below for at in ids)


def _check_layers(config: DeepseekV41Config) -> None:
    """Which layers compress, and whose rows and selections the others use."""
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    drafts = config.num_nextn_predict_layers
    if len(ratios) != layers + drafts or not set(ratios) <= set(RATIOS) or any(ratios[layers:]):
        said = f"is not {layers} of {list(RATIOS)}, then {drafts} zeros"
        raise refuse("compress_ratios", said)
    lists = ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids")
    for field in lists:
        if not _ascending(getattr(config, field), layers):
            raise refuse(field, f"is not ascending layers below {layers}")
    sources, indexed = config.kv_source_layer_ids, config.index_source_layer_ids
    if not set(sources) <= set(indexed):
        raise refuse("kv_source_layer_ids", "has a layer that is not in index_source_layer_ids")
    for layer in range(layers):
        if not ratios[layer]:
            if layer in indexed:
                raise refuse("index_source_layer_ids", f"has {layer}, which does not compress")
        elif not any(source <= layer for source in sources):
            raise refuse("kv_source_layer_ids", f"has none for layer {layer}, which compresses")
        elif ratios[config.kv_source(layer)] != ratios[layer]:
            raise refuse("compress_ratios", f"of layer {layer} is not its kv source's")
    candidates = config.candidate_source_layer_id
    if candidates not in indexed or config.kv_source(layers - 1) > candidates:
        said = "is no index source, or keys of another layer follow it"
        raise refuse("candidate_source_layer_id", said)
    if any(layer >= candidates for layer in config.engram_layer_ids):
        raise refuse("engram_layer_ids", "has layers of the decoder half")


def _check_drafts(config: DeepseekV41Config) -> None:
    if not config.num_nextn_predict_layers:
        return
    most = {"dspark_block_size": 64, "dspark_markov_rank": 1 << 14}
    check_range(config, most)
    taps = config.dspark_target_layer_ids
    if not taps or not _ascending(taps, config.num_hidden_layers) or taps[0] <= config.decoder:
        said = f"is {list(taps)}, not ascending layers after the decoder's first"
        raise refuse("dspark_target_layer_ids", said)
    if not 0 <= config.dspark_noise_token_id < config.vocab_size:
        raise refuse("dspark_noise_token_id", f"is {config.dspark_noise_token_id}, no token")
    if not 1 <= config.dspark_num_experts_per_tok <= config.dspark_n_routed_experts <= 1 << 14:
        raise refuse("dspark_num_experts_per_tok", "is not within 1..dspark_n_routed_experts")


def _check_engram(config: DeepseekV41Config) -> None:
    most = {"engram_n_heads": 64, "engram_head_dim": 1 << 14, "engram_vocab_size": 1 << 30,
            "engram_compressed_vocab_size": 1 << 24}  # fmt: skip
    check_range(config, most)
    if not 2 <= config.engram_max_ngram_size <= 16:
        raise refuse("engram_max_ngram_size", "is not within 2..16")
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        raise refuse("engram_num_embeddings", "is not one for each of engram_layer_ids")
    if not 0 <= config.engram_pad_token_id < config.vocab_size:
        raise refuse("engram_pad_token_id", f"is {config.engram_pad_token_id}, no token")


def _check(config: DeepseekV41Config) -> None:
    sizes = ("q_lora_rank", "o_lora_rank", "o_groups", "index_n_heads", "index_head_dim",
             "sliding_window")  # fmt: skip
    most = {key: limit for key, limit in MOST.items() if hasattr(config, key)}
    more = {"index_topk": 1 << 20, "candidate_topk_blocks": 1 << 20, "candidate_block_size": 4096,
            "hc_mult": 16, "hc_sinkhorn_iters": 1000, "moe_intermediate_size": 1 << 24}  # fmt: skip
    check_range(config, {**most, **dict.fromkeys(sizes, 1 << 14), **more})
    _check_layers(config)
    _check_drafts(config)
    _check_engram(config)
    check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, config.head_dim)
    check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, config.index_head_dim)
    check_share(config, "num_attention_heads", "o_groups")
    for field in ("hidden_size", "head_dim", "q_lora_rank", "index_head_dim", "engram_head_dim"):
        step = VECTOR if field == "hidden_size" else GROUP
        if getattr(config, field) % step:
            raise refuse(field, f"is {getattr(config, field)}, not a multiple of {step}")
    if not 1 <= config.num_experts_per_tok <= config.n_routed_experts <= 1 << 14:
        raise refuse("num_experts_per_tok", f"is not within 1..{config.n_routed_experts}")
    if not 0 < config.rms_norm_eps < 1:
        raise refuse("rms_norm_eps", f"is {config.rms_norm_eps}, not between 0 and 1")
    if config.rope_scaling.rope_type != "yarn":
        raise refuse("rope_scaling.rope_type", f"is {config.rope_scaling.rope_type!r}, not 'yarn'")


def _check_quantisation(found: object) -> None:
    if not isinstance(found, dict):
        raise refuse("quantization_config", "is missing")
    for key, wanted in QUANTISATION.items():
        if found.get(key) != wanted:
            raise refuse(f"quantization_config.{key}", f"is {found.get(key)!r}, not {wanted!r}")


def parse(config: dict[str, Any]) -> DeepseekV41Config:
    """DeepseekV41Config from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    _check_quantisation(raw.pop("quantization_config", None))
    parsed = read_fields(
        text_fields(raw, OUTER),
        DeepseekV41Config,
        "deepseek_v41",
        fixed=FIXED,
        derived={"rounded": True, "image_token_id": raw.get("image_token_id", -1)},
    )
    _check(parsed)
    return parsed
