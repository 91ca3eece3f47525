"""What the config.json of DeepSeek families has in common, whose heads share one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dgpp.models.config_fields import (
    MOST,
    check_bounds,
    check_epsilon,
    check_experts,
    check_multiples,
    check_range,
    check_rotation,
    check_share,
    check_sizes,
    check_theta,
    refuse,
)
from dgpp.models.layers.rope import Yarn
from kernels_numba.weights import VECTOR

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "num_key_value_heads": (1,),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True,),
    "tie_word_embeddings": (False,),
}
INDEX_TILE = 32
"""Values that share a scale in rounded index keys and queries."""
RANKS = ("q_lora_rank", "o_lora_rank", "o_groups", "sliding_window", "index_n_heads",
         "index_head_dim")  # fmt: skip


class YarnScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rope_scaling`, of the layers that compress; families name its kind differently."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float

    @property
    def yarn(self) -> Yarn:
        sizes = (self.original_max_position_embeddings, self.beta_fast, self.beta_slow)
        return Yarn(self.factor, *sizes)


class SharedRowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of attention, its entries and indexer, the streams, experts and draft stages, under the
    names of config.json.

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
    rope_scaling: YarnScaling
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    swiglu_limit: float
    routed_scaling_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    rounded: bool = True


C = TypeVar("C", bound=SharedRowConfig)


def exact(config: C) -> C:
    """The same model with cached rows as they were computed."""
    return msgspec.structs.replace(config, rounded=False)


def ascending(ids: Sequence[int], layers: range) -> bool:
    """Whether `ids` are layers of the range, each once and in order."""
    return sorted(set(ids)) == list(ids) and all(at in layers for at in ids)


def check_drafts(config: SharedRowConfig, tapped: range) -> None:
    """Raises CheckpointError naming the first field of the draft stages that is out of range;
    layers of `tapped` may give them their context."""
    check_range(config, {"dspark_block_size": 64, "dspark_markov_rank": 1 << 14})
    taps = config.dspark_target_layer_ids
    if not taps or not ascending(taps, tapped):
        said = f"is {list(taps)}, not ascending layers of {tapped.start} to {tapped.stop - 1}"
        raise refuse("dspark_target_layer_ids", said)
    check_token(config, "dspark_noise_token_id")


def check_token(config: SharedRowConfig, field: str) -> None:
    """Raises CheckpointError where `field` is no token of the vocabulary."""
    if not 0 <= getattr(config, field) < config.vocab_size:
        raise refuse(field, f"is {getattr(config, field)}, no token")


def check_shared_row(config: SharedRowConfig, most: Mapping[str, int], step: int = VECTOR) -> None:
    """Raises CheckpointError naming the first field that is out of range; `most` bounds fields of
    the family's own, rows are of whole `step` values."""
    more = {"index_topk": 1 << 20, "hc_mult": 16, "hc_sinkhorn_iters": 1000}
    check_sizes(config, {**dict.fromkeys(RANKS, 1 << 14), **more, **most})
    check_share(config, "num_attention_heads", "o_groups")
    for field in ("head_dim", "index_head_dim"):
        check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, getattr(config, field))
    check_multiples(config, ["hidden_size"], VECTOR)
    check_multiples(config, ("head_dim", "q_lora_rank"), step)
    check_experts(config)
    check_epsilon(config, "rms_norm_eps", "hc_eps")
    check_theta(config, "rope_theta", "compress_rope_theta")


def check_yarn(scaling: YarnScaling, field: str) -> None:
    """Raises CheckpointError where rotary embedding is stretched otherwise than by YaRN, which
    `field` names, or by absurd measures."""
    if (said := getattr(scaling, field)) != "yarn":
        raise refuse(f"rope_scaling.{field}", f"is {said!r}, not 'yarn'")
    check_bounds(scaling, ["factor"], 1, 1024, "rope_scaling.")
    check_bounds(scaling, ("beta_fast", "beta_slow"), 0.001, 1e6, "rope_scaling.")
    positions = MOST["max_position_embeddings"]
    check_range(scaling, {"original_max_position_embeddings": positions}, "rope_scaling.")
