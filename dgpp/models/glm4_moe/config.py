"""GLM-4.7's config.json, parsed strictly: what the forward pass does not know is named."""

from __future__ import annotations

import fnmatch
from typing import Any

import msgspec

from dgpp.checkpoint.formats import BF16, NVFP4_MODELOPT, Format
from dgpp.models.config_fields import (
    MOST_EXPERTS,
    check_bounds,
    check_epsilon,
    check_experts,
    check_rotation,
    check_share,
    check_sizes,
    check_theta,
    fold_rope,
    read_fields,
)
from dgpp.models.quantisation import modelopt_ignored, take_quantisation

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "rope_scaling": (None,),
    "rope_interleave": (False,),
}


class Glm4MoeConfig(msgspec.Struct, frozen=True):
    """The sizes of a glm4_moe model, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    head_dim: int
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    attention_bias: bool = False
    use_qk_norm: bool = False
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 0
    unquantised: tuple[str, ...] | None = None
    """Shell-style names of modules left in bf16; None when nothing is quantised."""

    @property
    def rotated(self) -> int:
        """Leading dimensions of a head that rotary embedding turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    def dense(self, layer: int) -> bool:
        """Whether a layer has a plain MLP."""
        return layer < self.first_k_dense_replace

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        if self.unquantised is None:
            return BF16
        left = any(fnmatch.fnmatchcase(module, pattern) for pattern in self.unquantised)
        return BF16 if left else NVFP4_MODELOPT


def _unquantised(raw: dict[str, Any]) -> tuple[str, ...] | None:
    """The ignore list of a modelopt NVFP4 checkpoint; None without quantisation."""
    quantisation = take_quantisation(raw)
    if quantisation is None:
        return None
    return modelopt_ignored(quantisation)


def _check_sizes(config: Glm4MoeConfig) -> None:
    check_sizes(config)
    check_theta(config)
    check_epsilon(config)
    check_bounds(config, ["first_k_dense_replace"], 0, config.num_hidden_layers)
    check_bounds(config, ["num_nextn_predict_layers"], 0, 16)
    check_share(config, "num_attention_heads", "num_key_value_heads")
    check_bounds(config, ["partial_rotary_factor"], 0, 1)
    check_rotation("partial_rotary_factor", config.rotated, config.head_dim)
    dense = config.first_k_dense_replace >= config.num_hidden_layers
    routed = not dense or config.num_nextn_predict_layers > 0
    if routed:
        check_experts(config)
    check_bounds(config, ("n_routed_experts", "num_experts_per_tok"), 0, MOST_EXPERTS)


def parse(config: dict[str, Any]) -> Glm4MoeConfig:
    """Glm4MoeConfig from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    fold_rope(raw, {"rope_theta", "partial_rotary_factor"})
    unquantised = _unquantised(raw)
    hidden, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    if "head_dim" not in raw and isinstance(hidden, int) and isinstance(heads, int):
        raw["head_dim"] = hidden // max(1, heads)
    parsed = read_fields(
        raw, Glm4MoeConfig, "glm4_moe", fixed=FIXED, derived={"unquantised": unquantised}
    )
    _check_sizes(parsed)
    return parsed
