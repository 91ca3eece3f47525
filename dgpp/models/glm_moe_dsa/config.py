"""GLM-5.3's config.json, parsed strictly."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    MOST,
    SILENT,
    check_range,
    check_rotation,
    fold_rope,
    read_fields,
    refuse,
)
from dgpp.models.quantisation import UNQUANTISED, Quantised, compressed_tensors
from kernels_numba.weights import VECTOR

FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "attention_bias": (False,),
    "rope_scaling": (None,),
    "rope_interleave": (True,),
    "indexer_rope_interleave": (True,),
    "index_topk_pattern": (None,),
    "index_share_for_mtp_iteration": (True,),
    "moe_layer_freq": (1,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "tie_word_embeddings": (False,),
}
# What is said twice, and what is about training or another way to run.
SAID = frozenset({"ep_size", "pretraining_tp", "moe_router_dtype", "head_dim", "index_topk_freq",
                  "index_skip_topk_offset", "num_key_value_heads"})  # fmt: skip
SERVED = frozenset({"pack-quantized"})
"""The formats of compressed-tensors that releases of this family have."""
RANK_EPS = 1e-6
"""Of the norms inside the low-rank projections, whatever rms_norm_eps says."""


class GlmDsaConfig(msgspec.Struct, frozen=True):
    """The sizes of a glm_moe_dsa model, under the names of config.json.

    `indexer_types` says per layer whether it selects by itself (full) or as the last one that did
    (shared); `mlp_layer_types` dense or sparse.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    indexer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    rope_theta: float
    max_position_embeddings: int
    rms_norm_eps: float
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: int = 0
    first_k_dense_replace: int | None = None
    qk_head_dim: int | None = None
    quantised: Quantised = UNQUANTISED

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        return self.quantised.format(module)

    def selects(self, layer: int) -> bool:
        """Whether a layer has an indexer of its own; draft layers have."""
        return layer >= self.num_hidden_layers or self.indexer_types[layer] == "full"

    def dense(self, layer: int) -> bool:
        return layer < self.num_hidden_layers and self.mlp_layer_types[layer] == "dense"


def _check_lists(config: GlmDsaConfig) -> None:
    kinds = {"indexer_types": {"full", "shared"}, "mlp_layer_types": {"dense", "sparse"}}
    for field, allowed in kinds.items():
        listed = getattr(config, field)
        if len(listed) != config.num_hidden_layers or not set(listed) <= allowed:
            raise refuse(field, f"is not {config.num_hidden_layers} of {sorted(allowed)}")
    if config.indexer_types[0] != "full":
        raise refuse("indexer_types", "begins with a layer that shares another's selection")
    dense = config.mlp_layer_types.count("dense")
    late = "dense" in config.mlp_layer_types[dense:]
    if config.first_k_dense_replace not in (None, dense) or late:
        raise refuse("first_k_dense_replace", f"is {config.first_k_dense_replace}: not the first")


def _check(config: GlmDsaConfig) -> None:
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "index_n_heads",
             "index_head_dim")  # fmt: skip
    most = {key: limit for key, limit in MOST.items() if hasattr(config, key)}
    check_range(config, {**most, **dict.fromkeys(sizes, 1 << 14), "index_topk": 1 << 20})
    _check_lists(config)
    for field in ("kv_lora_rank", "index_head_dim"):
        if getattr(config, field) % VECTOR:
            raise refuse(field, f"is {getattr(config, field)}, not a multiple of {VECTOR}")
    check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, config.index_head_dim)
    if config.qk_head_dim not in (None, config.qk_nope_head_dim + config.qk_rope_head_dim):
        raise refuse("qk_head_dim", f"is {config.qk_head_dim}, not its parts' sum")
    if not 1 <= config.num_experts_per_tok <= config.n_routed_experts <= 1 << 14:
        raise refuse("num_experts_per_tok", f"is not within 1..{config.n_routed_experts}")
    if not 0 <= config.num_nextn_predict_layers <= 16:
        raise refuse("num_nextn_predict_layers", "is not within 0..16")
    if not 0 < config.rms_norm_eps < 1:
        raise refuse("rms_norm_eps", f"is {config.rms_norm_eps}, not between 0 and 1")


def parse(config: dict[str, Any]) -> GlmDsaConfig:
    """GlmDsaConfig from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    fold_rope(raw, {"rope_theta"})
    found = raw.pop("quantization_config", None)
    quantised = UNQUANTISED if found is None else compressed_tensors(found, SERVED)
    parsed = read_fields(
        raw,
        GlmDsaConfig,
        "glm_moe_dsa",
        fixed=FIXED,
        silent=SILENT | SAID,
        derived={"quantised": quantised},
    )
    _check(parsed)
    return parsed
