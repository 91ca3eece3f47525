"""GLM-5.3's config.json, parsed strictly."""

from __future__ import annotations

from typing import Any

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    SILENT,
    check_kinds,
    check_rotation,
    check_theta,
    fold_rope,
    read_fields,
    refuse,
)
from dgpp.models.glm.config import FIXED as GLM_FIXED
from dgpp.models.glm.config import SAID as GLM_SAID
from dgpp.models.glm.config import LatentConfig, check_latent
from dgpp.models.quantisation import UNQUANTISED, compressed_tensors, take_quantisation

FIXED: dict[str, tuple[Any, ...]] = {
    **GLM_FIXED,
    "rope_scaling": (None,),
    "rope_interleave": (True,),
    "indexer_rope_interleave": (True,),
    "index_topk_pattern": (None,),
    "moe_layer_freq": (1,),
}
# What is said twice, and what is about training or another way to run.
SAID = GLM_SAID | {"ep_size", "pretraining_tp", "index_topk_freq", "index_skip_topk_offset"}
SERVED = frozenset({"pack-quantized"})
"""The formats of compressed-tensors that releases of this family have."""
RANK_EPS = 1e-6
"""Of the norms inside the low-rank projections, whatever rms_norm_eps says."""


class GlmDsaConfig(LatentConfig, frozen=True, kw_only=True):
    """The sizes of a glm_moe_dsa model, under the names of config.json.

    `indexer_types` says per layer whether it selects by itself (full) or as the last one that did
    (shared).
    """

    qk_rope_head_dim: int
    indexer_types: tuple[str, ...]
    rope_theta: float

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        return self.quantised.format(module)

    def selects(self, layer: int) -> bool:
        """Whether a layer has an indexer of its own; draft layers have."""
        return layer >= self.num_hidden_layers or self.indexer_types[layer] == "full"


def _check(config: GlmDsaConfig) -> None:
    check_rotation("qk_rope_head_dim", config.qk_rope_head_dim, config.index_head_dim)
    head = config.qk_nope_head_dim + config.qk_rope_head_dim
    check_latent(config, head, ("kv_lora_rank", "index_head_dim"), {})
    check_theta(config)
    check_kinds(config, "indexer_types", {"full", "shared"})
    if config.indexer_types[0] != "full":
        raise refuse("indexer_types", "begins with a layer that shares another's selection")
    dense = config.mlp_layer_types.count("dense")
    late = "dense" in config.mlp_layer_types[dense:]
    if config.first_k_dense_replace not in (None, dense) or late:
        raise refuse("first_k_dense_replace", f"is {config.first_k_dense_replace}: not the first")


def parse(config: dict[str, Any]) -> GlmDsaConfig:
    """GlmDsaConfig from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    fold_rope(raw, {"rope_theta"})
    found = take_quantisation(raw)
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
