"""Qwen3.8-27B's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    check_epsilon,
    check_kinds,
    check_least,
    check_levels,
    check_rotation,
    check_share,
    check_sizes,
    fold_rope,
    read_fields,
    text_fields,
)
from dgpp.models.layers.rope import Yarn
from dgpp.models.quantisation import UNQUANTISED, Quantised, compressed_tensors, fp8_blocks

OUTER = frozenset(
    {
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "vision_config",
        "language_model_only",
    }
)
"""Fields beside the text model's that are about images."""
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "rope_scaling": (None,),
    "tie_word_embeddings": (False,),
    "mamba_ssm_dtype": ("float32",),
    "mtp_use_dedicated_embeddings": (False,),
}
KINDS = {"linear_attention", "full_attention"}
SERVED = frozenset({"nvfp4-pack-quantized", "float-quantized"})
"""The formats of compressed-tensors that a release has: NVFP4 MLPs, FP8 by channels elsewhere."""


class Qwen35Config(msgspec.Struct, frozen=True):
    """The sizes of a qwen3_5 text model, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_value_head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    mtp_num_hidden_layers: int = 0
    full_attention_interval: int | None = None
    quantised: Quantised = UNQUANTISED
    yarn: Yarn | None = None

    @property
    def rotated(self) -> int:
        """Leading dimensions of a head that rotary embedding turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    def full(self, layer: int) -> bool:
        """Whether a layer has attention over all positions."""
        return self.layer_types[layer] == "full_attention"

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        return self.quantised.format(module)


def qwen_text(config: dict[str, Any], outer: Set[str]) -> dict[str, Any]:
    """The text model's fields; those of `outer` are about images."""
    text = text_fields(config, outer)
    rope = text.get("rope_parameters")
    if isinstance(rope, dict):
        # Rotary positions of text are the same on all three axes of an image's.
        text["rope_parameters"] = {
            key: value
            for key, value in rope.items()
            if key not in ("mrope_interleaved", "mrope_section")
        }
    return text


def _quantised(found: dict[str, Any] | None) -> Quantised:
    if found is None:
        return UNQUANTISED
    if found.get("quant_method") == "compressed-tensors":
        return compressed_tensors(found, SERVED)
    return fp8_blocks(found)


def _check(config: Qwen35Config) -> None:
    heads = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
             "linear_value_head_dim")  # fmt: skip
    check_sizes(config, {**dict.fromkeys(heads, 1 << 14), "linear_conv_kernel_dim": 64})
    check_share(config, "num_attention_heads", "num_key_value_heads")
    check_share(config, "linear_num_value_heads", "linear_num_key_heads")
    check_rotation("partial_rotary_factor", config.rotated, config.head_dim)
    check_kinds(config, "layer_types", KINDS)
    check_least(config, ["linear_conv_kernel_dim"], 2)
    check_levels(config, "mtp_num_hidden_layers", 1)
    check_epsilon(config)


def parse(config: dict[str, Any]) -> Qwen35Config:
    """Qwen35Config from a parsed config.json. Raises CheckpointError naming the field."""
    config = dict(config)
    quantised = _quantised(config.pop("quantization_config", None))
    raw = qwen_text(config, OUTER)
    fold_rope(raw, {"rope_theta", "partial_rotary_factor"})
    derived = {"quantised": quantised, "yarn": None}
    parsed = read_fields(raw, Qwen35Config, "qwen3_5", fixed=FIXED, derived=derived)
    _check(parsed)
    return parsed
