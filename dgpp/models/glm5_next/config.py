"""GLM-5.3-Flash's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dgpp.checkpoint.formats import Format
from dgpp.models.config_fields import (
    SILENT,
    check_bounds,
    check_epsilon,
    check_kinds,
    check_range,
    read_fields,
    refuse,
    text_fields,
)
from dgpp.models.glm.config import FIXED as GLM_FIXED
from dgpp.models.glm.config import SAID as GLM_SAID
from dgpp.models.glm.config import LatentConfig, check_latent
from dgpp.models.quantisation import UNQUANTISED, Quantised, fp8_blocks, mixed, take_quantisation

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
    **GLM_FIXED,
    "mhc": (True,),
    "mla_use_nope": (True,),
    "qk_rope_head_dim": (0,),
    "index_kpool_always_select_tail": (True,),
    "index_kpool_compress": (True,),
}
# What is said twice, or about a rotation that there is not.
SAID = GLM_SAID | {"indexer_rope_interleave", "rope_parameters", "rope_theta"}
KINDS = {"linear_attention", "deepseek_sparse_attention"}


class LinearConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`linear_attn_config`: sizes of the delta layers, and which they are."""

    num_heads: int
    head_dim: int
    short_conv_kernel_size: int
    gate_lower_bound: float
    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]


class Glm5NextConfig(LatentConfig, frozen=True, kw_only=True):
    """The sizes of a glm5_next text model, under the names of config.json."""

    index_kpool: int
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    layer_types: tuple[str, ...]
    linear_attn_config: LinearConfig
    swiglu_limit: float
    indexer_types: tuple[str, ...] | None = None

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`, whose name files shorten."""
        return self.quantised.format(module.replace("model.language_model.", "model.", 1))

    def sparse(self, layer: int) -> bool:
        """Whether a layer attends to selected positions; draft layers do."""
        return layer >= self.num_hidden_layers or self.layer_types[layer] != "linear_attention"


def _check_layers(config: Glm5NextConfig) -> None:
    check_kinds(config, "layer_types", KINDS)
    delta = [n for n, kind in enumerate(config.layer_types) if kind == "linear_attention"]
    told = config.linear_attn_config
    if list(told.kda_layers) != delta:
        raise refuse("linear_attn_config.kda_layers", f"is {list(told.kda_layers)}, not {delta}")
    if sorted([*delta, *told.full_attn_layers]) != list(range(config.num_hidden_layers)):
        raise refuse("linear_attn_config.full_attn_layers", "is not the other layers")
    inside = "linear_attn_config."
    check_range(told, dict.fromkeys(("num_heads", "head_dim"), 1 << 14), inside)
    check_bounds(told, ["short_conv_kernel_size"], 2, 64, inside)
    check_bounds(told, ["gate_lower_bound"], -1000, -0.001, inside)
    if config.indexer_types is not None and set(config.indexer_types) != {"full"}:
        raise refuse("indexer_types", "is not full throughout")


def _check(config: Glm5NextConfig) -> None:
    most = {"index_kpool": 64, "hc_mult": 16, "hc_sinkhorn_iters": 1000}
    vectors = ("kv_lora_rank", "index_head_dim", "hidden_size")
    check_latent(config, config.qk_nope_head_dim, vectors, most)
    check_epsilon(config, "hc_eps")
    _check_layers(config)
    if config.index_topk % config.index_kpool:
        raise refuse("index_topk", f"is not a multiple of index_kpool {config.index_kpool}")


def _quantised(found: Mapping[str, Any] | None) -> Quantised:
    if found is None:
        return UNQUANTISED
    return mixed(found) if found.get("quant_method") == "dgpp_mixed" else fp8_blocks(found)


def parse(config: dict[str, Any]) -> Glm5NextConfig:
    """Glm5NextConfig from a parsed config.json. Raises CheckpointError naming the field."""
    config = dict(config)
    quantised = _quantised(take_quantisation(config))
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
