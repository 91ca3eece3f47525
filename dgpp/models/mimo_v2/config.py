"""MiMo-V2.6-Flash's config.json, parsed strictly."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.checkpoint.formats import BF16, FP8_BLOCK, MXFP4_U8, Format, fp8_block
from dgpp.models.config_fields import (
    MOST,
    SILENT,
    check_bounds,
    check_epsilon,
    check_experts,
    check_kinds,
    check_rotation,
    check_share,
    check_sizes,
    check_theta,
    fold_rope,
    list_at,
    read_fields,
    refuse,
)
from dgpp.models.quantisation import FIELD, take_quantisation

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "rope_scaling": (None,),
    "attention_bias": (False,),
    "attention_projection_layout": ("fused_qkv",),
    "add_full_attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (True,),
    "hybrid_block_size": (None,),
    "n_shared_experts": (None, 0),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "tie_word_embeddings": (False,),
}
QUANTISED = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "store_dtype": "mxfp4",
    "mxfp4_block_size": 32,
    "weight_block_size": [128, 128],
}
"""The one quantisation that is served: FP8 by blocks, experts in MXFP4, o_proj left in bf16."""


class MimoConfig(msgspec.Struct, frozen=True):
    """The sizes of a mimo_v2 model, under the names of config.json.

    `hybrid_layer_pattern` says 1 for a layer with a sliding window, `moe_layer_freq` 1 for a
    mixture of experts. `swa_` sizes are those of layers with a window.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int
    swa_num_attention_heads: int
    swa_num_key_value_heads: int
    swa_head_dim: int
    swa_v_head_dim: int
    hybrid_layer_pattern: tuple[int, ...]
    moe_layer_freq: tuple[int, ...]
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    sliding_window: int
    rope_theta: float
    swa_rope_theta: float
    partial_rotary_factor: float
    attention_value_scale: float
    layernorm_epsilon: float
    max_position_embeddings: int
    norm_topk_prob: bool = True
    routed_scaling_factor: float | None = None
    num_nextn_predict_layers: int = 0
    sliding_window_size: int | None = None
    attention_chunk_size: int | None = None
    quantised: bool = False

    @property
    def chunks(self) -> int:
        """Parts of a fused projection, each with its share of the heads."""
        return self.num_key_value_heads

    @property
    def qkv_format(self) -> Format:
        return fp8_block(self.chunks) if self.quantised else BF16

    @property
    def mlp_format(self) -> Format:
        return FP8_BLOCK if self.quantised else BF16

    @property
    def expert_format(self) -> Format:
        return MXFP4_U8 if self.quantised else BF16


def _quantised(raw: dict[str, Any]) -> bool:
    found = take_quantisation(raw)
    if found is None:
        return False
    for key, wanted in QUANTISED.items():
        if found.get(key) != wanted:
            raise refuse(f"{FIELD}.{key}", f"is {found.get(key)!r}, not {wanted!r}")
    field = f"{FIELD}.ignored_layers"
    for module in list_at(field, found.get("ignored_layers")):
        if not str(module).endswith(".self_attn.o_proj"):
            raise refuse(field, f"names {module!r}")
    return True


def _check(config: MimoConfig) -> None:
    sizes = ("swa_num_attention_heads", "swa_num_key_value_heads", "v_head_dim", "swa_v_head_dim")
    heads = dict.fromkeys(("swa_head_dim", *sizes), MOST["head_dim"])
    check_sizes(config, {**heads, "sliding_window": 1 << 24})
    for prefix in ("", "swa_"):
        check_share(config, f"{prefix}num_attention_heads", f"{prefix}num_key_value_heads")
    for field in ("num_attention_heads", "swa_num_attention_heads", "swa_num_key_value_heads"):
        check_share(config, field, "num_key_value_heads")
    check_bounds(config, ["partial_rotary_factor"], 0, 1)
    for dim in (config.head_dim, config.swa_head_dim):
        rotated = int(dim * config.partial_rotary_factor)
        check_rotation("partial_rotary_factor", rotated, dim)
    for field in ("hybrid_layer_pattern", "moe_layer_freq"):
        check_kinds(config, field, {0, 1})
    for field in ("sliding_window_size", "attention_chunk_size"):
        if getattr(config, field) not in (None, config.sliding_window):
            raise refuse(field, f"is {getattr(config, field)}, sliding_window is not")
    check_experts(config)
    check_epsilon(config, "layernorm_epsilon")
    check_bounds(config, ["num_nextn_predict_layers"], 0, 16)
    check_theta(config, "rope_theta", "swa_rope_theta")


def parse(config: dict[str, Any]) -> MimoConfig:
    """MimoConfig from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    fold_rope(raw, {"rope_theta", "partial_rotary_factor"})
    quantised = _quantised(raw)
    parsed = read_fields(
        raw,
        MimoConfig,
        "mimo_v2",
        fixed=FIXED,
        silent=SILENT | {"moe_router_dtype", "auto_map"},
        derived={"quantised": quantised},
    )
    _check(parsed)
    return parsed
