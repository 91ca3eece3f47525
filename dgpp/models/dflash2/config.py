"""A DFlash2 drafter's config.json, parsed strictly."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from dgpp.models.config_fields import (
    MOST,
    SILENT,
    check_bounds,
    check_epsilon,
    check_range,
    check_rotation,
    check_share,
    check_sizes,
    check_theta,
    fold_rope,
    read_fields,
    refuse,
)

ARCHITECTURE = "DFlash2DraftModel"
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "is_causal": (False,),
    "rope_scaling": (None,),
    "use_sliding_window": (True,),
    "tie_word_embeddings": (False,),
}


class BlockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`dflash_config`: how a block is drafted."""

    block_size: int
    conv_group_size: int
    conv_kernel_size: int
    mask_token_id: int
    selector_rank: int
    selector_top_k: int
    target_layer_ids: tuple[int, ...]


class DFlash2Config(msgspec.Struct, frozen=True):
    """The sizes of a drafter, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    sliding_window: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    num_target_layers: int
    layer_types: tuple[str, ...]
    dflash_config: BlockConfig
    max_window_layers: int | None = None


def is_drafter(config: dict[str, Any]) -> bool:
    """Whether a config.json describes a DFlash2 drafter."""
    return config.get("architectures") == [ARCHITECTURE]


def _check(config: DFlash2Config) -> None:
    layers = MOST["num_hidden_layers"]
    check_sizes(config, {"sliding_window": 1 << 24, "num_target_layers": layers})
    check_bounds(config, ["max_window_layers"], 0, layers)
    check_theta(config)
    check_share(config, "num_attention_heads", "num_key_value_heads")
    check_rotation("head_dim", config.head_dim, config.head_dim)
    if set(config.layer_types) != {"sliding_attention"}:
        raise refuse("layer_types", "is not sliding_attention throughout")
    if len(config.layer_types) != config.num_hidden_layers:
        raise refuse("layer_types", f"is not {config.num_hidden_layers} layers")
    check_epsilon(config)
    block = config.dflash_config
    if block.conv_kernel_size != 2:
        raise refuse("dflash_config.conv_kernel_size", f"is {block.conv_kernel_size}, not 2")
    if block.conv_group_size < 1 or config.hidden_size % block.conv_group_size:
        raise refuse("dflash_config.conv_group_size", "does not divide hidden_size")
    inside = "dflash_config."
    check_bounds(block, ["block_size"], 2, 64, inside)
    check_range(block, {"selector_top_k": 128, "selector_rank": 1 << 14}, inside)
    if not 0 <= block.mask_token_id < config.vocab_size:
        raise refuse("dflash_config.mask_token_id", f"is {block.mask_token_id}, no token")
    taps = block.target_layer_ids
    known = set(range(config.num_target_layers))
    if not taps or sorted(known.intersection(taps)) != list(taps):
        raise refuse("dflash_config.target_layer_ids", f"is {list(taps)}, not ascending layers")


class Target(Protocol):
    """The sizes of a target that a drafter has to fit."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...


def require_target(config: DFlash2Config, target: Target) -> None:
    """Raises CheckpointError naming the size in which drafter and target differ."""
    pairs = {
        "vocab_size": (config.vocab_size, target.vocab_size),
        "hidden_size": (config.hidden_size, target.hidden_size),
        "num_target_layers": (config.num_target_layers, target.num_hidden_layers),
    }
    for field, (own, wanted) in pairs.items():
        if own != wanted:
            raise refuse(field, f"of the drafter is {own}, the target has {wanted}")


def parse(config: dict[str, Any]) -> DFlash2Config:
    """DFlash2Config from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    fold_rope(raw, {"rope_theta"})
    parsed = read_fields(raw, DFlash2Config, "a DFlash2 drafter", fixed=FIXED, silent=SILENT)
    _check(parsed)
    return parsed
