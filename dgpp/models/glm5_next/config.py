"""GLM-5.3-Flash's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    MOST,
    SILENT,
    check_range,
    read_fields,
    refuse,
    text_fields,
)
from dgpp.models.quantisation import UNQUANTISED, Quantised, fp8_blocks, mixed
from kernels_numba.weights import VECTOR

OUTER = frozenset(
    {
        "image_start_token_id",
        "image_end_token_id",
        "video_start_token_id",
        "video_end_token_id",
        "image_token_id",
        "video_token_id",
        "vision_config",
    }
)
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "attention_bias": (False,),
    "mhc": (True,),
    "mla_use_nope": (True,),
    "qk_rope_head_dim": (0,),
    "index_kpool_always_select_tail": (True,),
    "index_kpool_compress": (True,),
    "index_share_for_mtp_iteration": (True,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "tie_word_embeddings": (False,),
}
# What is said twice, or about a rotation that there is not.
SAID = frozenset({"head_dim", "moe_router_dtype", "num_key_value_heads", "indexer_rope_interleave",
                  "rope_parameters", "rope_theta"})  # fmt: skip
KINDS = {"linear_attention", "deepseek_sparse_attention"}


class LinearConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`linear_attn_config`: sizes of the delta layers, and which they are."""

    num_heads: int
    head_dim: int
    short_conv_kernel_size: int
    gate_lower_bound: float
    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]


class Glm5NextConfig(msgspec.Struct, frozen=True):
    """The sizes of a glm5_next text model, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    layer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    linear_attn_config: LinearConfig
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    swiglu_limit: float
    max_position_embeddings: int
    rms_norm_eps: float
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: int = 0
    first_k_dense_replace: int | None = None
    qk_head_dim: int | None = None
    indexer_types: tuple[str, ...] | None = None
    quantised: Quantised = UNQUANTISED

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`, whose name files shorten."""
        return self.quantised.format(module.replace("model.language_model.", "model.", 1))

    def sparse(self, layer: int) -> bool:
        """Whether a layer attends to selected positions; draft layers do."""
        return layer >= self.num_hidden_layers or self.layer_types[layer] != "linear_attention"

    def dense(self, layer: int) -> bool:
        """Whether a layer has a plain MLP."""
        return layer < self.num_hidden_layers and self.mlp_layer_types[layer] == "dense"


def _check_lists(config: Glm5NextConfig) -> None:
    kinds = {"layer_types": KINDS, "mlp_layer_types": {"dense", "sparse"}}
    for field, allowed in kinds.items():
        listed = getattr(config, field)
        if len(listed) != config.num_hidden_layers or not set(listed) <= allowed:
            raise refuse(field, f"is not {config.num_hidden_layers} of {sorted(allowed)}")
    delta = [n for n, kind in enumerate(config.layer_types) if kind == "linear_attention"]
    told = config.linear_attn_config
    if list(told.kda_layers) != delta:
        raise refuse("linear_attn_config.kda_layers", f"is {list(told.kda_layers)}, not {delta}")
    if sorted([*delta, *told.full_attn_layers]) != list(range(config.num_hidden_layers)):
        raise refuse("linear_attn_config.full_attn_layers", "is not the other layers")
    if config.indexer_types is not None and set(config.indexer_types) != {"full"}:
        raise refuse("indexer_types", "is not full throughout")


def _check(config: Glm5NextConfig) -> None:
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "index_n_heads",
             "index_head_dim")  # fmt: skip
    most = {key: limit for key, limit in MOST.items() if hasattr(config, key)}
    more = {"index_topk": 1 << 20, "index_kpool": 64, "hc_mult": 16, "hc_sinkhorn_iters": 1000}
    check_range(config, {**most, **dict.fromkeys(sizes, 1 << 14), **more})
    _check_lists(config)
    for field in ("kv_lora_rank", "index_head_dim", "hidden_size"):
        if getattr(config, field) % VECTOR:
            raise refuse(field, f"is {getattr(config, field)}, not a multiple of {VECTOR}")
    if config.index_topk % config.index_kpool:
        raise refuse("index_topk", f"is not a multiple of index_kpool {config.index_kpool}")
    if config.qk_head_dim not in (None, config.qk_nope_head_dim):
        raise refuse("qk_head_dim", f"is {config.qk_head_dim}, not qk_nope_head_dim")
    if not 1 <= config.num_experts_per_tok <= config.n_routed_experts <= 1 << 14:
        raise refuse("num_experts_per_tok", f"is not within 1..{config.n_routed_experts}")
    if config.linear_attn_config.short_conv_kernel_size < 2:
        raise refuse("linear_attn_config.short_conv_kernel_size", "is below 2")
    if not 0 < config.rms_norm_eps < 1:
        raise refuse("rms_norm_eps", f"is {config.rms_norm_eps}, not between 0 and 1")


def _quantised(found: dict[str, Any] | None) -> Quantised:
    if found is None:
        return UNQUANTISED
    return mixed(found) if found.get("quant_method") == "dgpp_mixed" else fp8_blocks(found)


def parse(config: dict[str, Any]) -> Glm5NextConfig:
    """Glm5NextConfig from a parsed config.json. Raises CheckpointError naming the field."""
    config = dict(config)
    quantised = _quantised(config.pop("quantization_config", None))
    parsed = read_fields(
        text_fields(config, OUTER),
        Glm5NextConfig,
        "glm5_next",
        fixed=FIXED,
        silent=SILENT | SAID,
        derived={"quantised": quantised},
    )
    _check(parsed)
    return parsed
