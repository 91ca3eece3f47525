"""What the config.json of GLM families with latent attention have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgpp.models.config_fields import (
    check_bounds,
    check_epsilon,
    check_experts,
    check_kinds,
    check_multiples,
    check_sizes,
    refuse,
)
from dgpp.models.quantisation import UNQUANTISED, Quantised
from kernels_numba.weights import VECTOR

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "attention_bias": (False,),
    "index_share_for_mtp_iteration": (True,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "tie_word_embeddings": (False,),
}
SAID = frozenset({"head_dim", "moe_router_dtype", "num_key_value_heads"})
"""What other fields say already."""
RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "index_n_heads",
         "index_head_dim")  # fmt: skip


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of latent attention, its indexer and the experts, under the names of config.json;
    `mlp_layer_types` says per layer dense or sparse."""

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
    mlp_layer_types: tuple[str, ...]
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    max_position_embeddings: int
    rms_norm_eps: float
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: int = 0
    first_k_dense_replace: int | None = None
    qk_head_dim: int | None = None
    quantised: Quantised = UNQUANTISED

    def dense(self, layer: int) -> bool:
        """Whether a layer has a plain MLP; those of draft levels have experts."""
        return layer < self.num_hidden_layers and self.mlp_layer_types[layer] == "dense"


def check_latent(
    config: LatentConfig, head: int, vectors: Sequence[str], most: Mapping[str, int]
) -> None:
    """Raises CheckpointError naming the first field that is out of range. A query's head has `head`
    values, the sizes `vectors` are of whole vectors; `most` bounds fields of the family's own."""
    ranks = dict.fromkeys(RANKS, 1 << 14)
    check_sizes(config, {**ranks, "index_topk": 1 << 20, **most})
    check_kinds(config, "mlp_layer_types", {"dense", "sparse"})
    check_multiples(config, vectors, VECTOR)
    if config.qk_head_dim not in (None, head):
        raise refuse("qk_head_dim", f"is {config.qk_head_dim}, its parts are {head}")
    check_experts(config)
    check_bounds(config, ["num_nextn_predict_layers"], 0, 16)
    check_bounds(config, ["first_k_dense_replace"], 0, config.num_hidden_layers)
    check_epsilon(config)
