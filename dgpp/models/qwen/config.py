"""What the config.json of Qwen families has in common: attention every few layers, delta nets
between. The text model's is read; images are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    MOST,
    check_bounds,
    check_epsilon,
    check_kinds,
    check_least,
    check_rotation,
    check_share,
    check_sizes,
    check_theta,
    fold_rope,
    read_fields,
    text_fields,
)
from dgpp.models.layers.rope import Yarn
from dgpp.models.quantisation import UNQUANTISED, Quantised

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
    "rope_scaling": (None,),
    "tie_word_embeddings": (False,),
    "mamba_ssm_dtype": ("float32",),
    "mtp_use_dedicated_embeddings": (False,),
}
KINDS = {"linear_attention", "full_attention"}
HEADS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
         "linear_value_head_dim")  # fmt: skip
# Rotary positions of text are the same on all three axes of an image's.
AXES = ("mrope_interleaved", "mrope_section")


class HybridConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of attention, delta nets and the draft level, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
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
        """Whether a layer has attention; draft levels have."""
        return layer >= self.num_hidden_layers or self.layer_types[layer] == "full_attention"

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        return self.quantised.format(module)


C = TypeVar("C", bound=HybridConfig)


def check_hybrid(config: HybridConfig, most: Mapping[str, int]) -> None:
    """Raises CheckpointError naming the first field that is out of range; `most` bounds fields of
    the family's own."""
    check_sizes(config, {**dict.fromkeys(HEADS, 1 << 14), "linear_conv_kernel_dim": 64, **most})
    check_share(config, "num_attention_heads", "num_key_value_heads")
    check_share(config, "linear_num_value_heads", "linear_num_key_heads")
    check_bounds(config, ["partial_rotary_factor"], 0, 1)
    check_rotation("partial_rotary_factor", config.rotated, config.head_dim)
    check_kinds(config, "layer_types", KINDS)
    check_least(config, ["linear_conv_kernel_dim"], 2)
    check_bounds(config, ["mtp_num_hidden_layers"], 0, 1)
    check_bounds(config, ["full_attention_interval"], 1, MOST["num_hidden_layers"])
    check_theta(config)
    check_epsilon(config)


def read_hybrid(
    config: Mapping[str, Any],
    kind: type[C],
    family: str,
    *,
    fixed: Mapping[str, tuple[Any, ...]],
    quantised: Quantised,
    derived: Mapping[str, Any] | None = None,
) -> C:
    """A config.json without its quantisation as a `kind`; the rest as in `read_fields`."""
    raw = text_fields(config, OUTER)
    rope = raw.get("rope_parameters")
    if isinstance(rope, dict):
        raw["rope_parameters"] = {key: rope[key] for key in rope if key not in AXES}
    fold_rope(raw, {"rope_theta", "partial_rotary_factor"})
    own = {"quantised": quantised, "yarn": None, **(derived or {})}
    return read_fields(raw, kind, family, fixed=fixed, derived=own)
