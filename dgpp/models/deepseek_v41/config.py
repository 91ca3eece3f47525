"""DeepSeek-V4.1-Flash's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpp.models.config_fields import (
    check_bounds,
    check_experts,
    check_multiples,
    check_range,
    read_fields,
    refuse,
    text_fields,
)
from dgpp.models.deepseek.config import FIXED as SHARED
from dgpp.models.deepseek.config import (
    SharedRowConfig,
    YarnScaling,
    ascending,
    check_drafts,
    check_shared_row,
    check_token,
    check_yarn,
)
from dgpp.models.quantisation import FIELD, take_quantisation

OUTER = frozenset({"image_token_id", "vision_config"})
FIXED: dict[str, tuple[Any, ...]] = {**SHARED, "n_shared_experts": (1,)}
QUANTISATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
RATIOS = (0, 1, 2)
GROUP = 32
"""Values that share a scale in rows of the cache."""


class RopeScaling(YarnScaling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rope_scaling`: of the layers that compress."""

    rope_type: str = "yarn"


class DeepseekV41Config(SharedRowConfig, frozen=True, kw_only=True):
    """The sizes of a deepseek_v41 text model, under the names of config.json."""

    rope_scaling: RopeScaling
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    image_token_id: int = -1

    @property
    def decoder(self) -> int:
        """The first layer of the decoder half, which bounded prefill runs over a window only."""
        return self.candidate_source_layer_id

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed rows `layer` reads; it has some."""
        return max(source for source in self.kv_source_layer_ids if source <= layer)


def _check_layers(config: DeepseekV41Config) -> None:
    """Which layers compress, and whose rows and selections the others use."""
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    drafts = config.num_nextn_predict_layers
    if len(ratios) != layers + drafts or not set(ratios) <= set(RATIOS) or any(ratios[layers:]):
        said = f"is not {layers} of {list(RATIOS)}, then {drafts} zeros"
        raise refuse("compress_ratios", said)
    lists = ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids")
    for field in lists:
        if not ascending(getattr(config, field), range(layers)):
            raise refuse(field, f"is not ascending layers below {layers}")
    sources, indexed = config.kv_source_layer_ids, config.index_source_layer_ids
    if not set(sources) <= set(indexed):
        raise refuse("kv_source_layer_ids", "has a layer that is not in index_source_layer_ids")
    for layer in range(layers):
        if not ratios[layer]:
            if layer in indexed:
                raise refuse("index_source_layer_ids", f"has {layer}, which does not compress")
        elif not any(source <= layer for source in sources):
            raise refuse("kv_source_layer_ids", f"has none for layer {layer}, which compresses")
        elif ratios[config.kv_source(layer)] != ratios[layer]:
            raise refuse("compress_ratios", f"of layer {layer} is not its kv source's")
    candidates = config.candidate_source_layer_id
    if candidates not in indexed or config.kv_source(layers - 1) > candidates:
        said = "is no index source, or keys of another layer follow it"
        raise refuse("candidate_source_layer_id", said)
    if any(layer >= candidates for layer in config.engram_layer_ids):
        raise refuse("engram_layer_ids", "has layers of the decoder half")


def _check_drafts(config: DeepseekV41Config) -> None:
    if not config.num_nextn_predict_layers:
        return
    check_drafts(config, range(config.decoder + 1, config.num_hidden_layers))
    check_experts(config, "dspark_n_routed_experts", "dspark_num_experts_per_tok")


def _check_engram(config: DeepseekV41Config) -> None:
    most = {"engram_n_heads": 64, "engram_head_dim": 1 << 14, "engram_vocab_size": 1 << 30,
            "engram_compressed_vocab_size": 1 << 24}  # fmt: skip
    check_range(config, most)
    if not 2 <= config.engram_max_ngram_size <= 16:
        raise refuse("engram_max_ngram_size", "is not within 2..16")
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        raise refuse("engram_num_embeddings", "is not one for each of engram_layer_ids")
    check_token(config, "engram_pad_token_id")
    check_bounds(config, ["image_token_id"], -1, config.vocab_size - 1)


def _check(config: DeepseekV41Config) -> None:
    most = {"candidate_topk_blocks": 1 << 20, "candidate_block_size": 4096}
    check_shared_row(config, most, GROUP)
    _check_layers(config)
    _check_drafts(config)
    _check_engram(config)
    check_multiples(config, ("index_head_dim", "engram_head_dim"), GROUP)
    check_yarn(config.rope_scaling, "rope_type")


def _check_quantisation(found: Mapping[str, Any] | None) -> None:
    if found is None:
        raise refuse(FIELD, "is missing")
    for key, wanted in QUANTISATION.items():
        if found.get(key) != wanted:
            raise refuse(f"{FIELD}.{key}", f"is {found.get(key)!r}, not {wanted!r}")


def parse(config: dict[str, Any]) -> DeepseekV41Config:
    """DeepseekV41Config from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    _check_quantisation(take_quantisation(raw))
    parsed = read_fields(
        text_fields(raw, OUTER),
        DeepseekV41Config,
        "deepseek_v41",
        fixed=FIXED,
        derived={"rounded": True, "image_token_id": raw.get("image_token_id", -1)},
    )
    _check(parsed)
    return parsed
