"""DeepSeek-V4-Flash's config.json, parsed strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpp.models.config_fields import SILENT, read_fields, refuse
from dgpp.models.deepseek.config import FIXED as SHARED
from dgpp.models.deepseek.config import (
    INDEX_TILE,
    SharedRowConfig,
    YarnScaling,
    check_drafts,
    check_shared_row,
    check_yarn,
)
from dgpp.models.quantisation import FIELD, fp8_blocks, take_quantisation

FIXED: dict[str, tuple[Any, ...]] = {**SHARED, "expert_dtype": ("fp4",)}
# The draft stages are those of compress_ratios; this says 1 whatever they are.
STALE = frozenset({"num_nextn_predict_layers"})
INDEXED = 4
"""The ratio of layers whose entries overlap and are selected by an indexer."""
TILE = 64
"""Values that share a scale in rounded rows of the cache."""


class RopeScaling(YarnScaling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rope_scaling`: of the layers that compress."""

    type: str


class DeepseekV4Config(SharedRowConfig, frozen=True, kw_only=True):
    """The sizes of a deepseek_v4 model, under the names of config.json."""

    rope_scaling: RopeScaling
    n_shared_experts: int
    num_hash_layers: int

    @property
    def stages(self) -> int:
        """Draft stages."""
        return len(self.compress_ratios) - self.num_hidden_layers


def _check_layers(config: DeepseekV4Config) -> None:
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    if len(ratios) < layers or any(ratios[layers:]):
        raise refuse("compress_ratios", f"is not {layers} ratios, then zeros for draft stages")
    # Blocks of the cache hold whole groups of every ratio.
    known = {0, *(1 << n for n in range(1, 13))}
    if not known.issuperset(ratios):
        odd = sorted(set(ratios) - known)
        raise refuse("compress_ratios", f"has {odd}, neither 0 nor powers of two from 2 to 4096")
    if not 0 <= config.num_hash_layers <= layers:
        raise refuse("num_hash_layers", f"is {config.num_hash_layers}, not within 0..{layers}")


def _check(config: DeepseekV4Config) -> None:
    check_shared_row(config, {})
    _check_layers(config)
    if config.stages:
        check_drafts(config, range(config.num_hidden_layers))
    if (config.head_dim - config.qk_rope_head_dim) % TILE:
        raise refuse("head_dim", f"less qk_rope_head_dim is not a multiple of {TILE}")
    dim = config.index_head_dim
    if dim < INDEX_TILE or dim & (dim - 1):
        raise refuse("index_head_dim", f"is {dim}, not a power of two from {INDEX_TILE} on")
    check_yarn(config.rope_scaling, "type")


def _check_quantisation(found: Mapping[str, Any] | None) -> None:
    """FP8 in blocks of 128 × 128, whose scales are powers of two; experts are MXFP4."""
    if found is None:
        raise refuse(FIELD, "is missing")
    fp8_blocks(found)
    if found.get("modules_to_not_convert"):
        raise refuse(f"{FIELD}.modules_to_not_convert", "is not empty")
    if found.get("scale_fmt") != "ue8m0":
        raise refuse(f"{FIELD}.scale_fmt", f"is {found.get('scale_fmt')!r}, not 'ue8m0'")


def parse(config: dict[str, Any]) -> DeepseekV4Config:
    """DeepseekV4Config from a parsed config.json. Raises CheckpointError naming the field."""
    raw = dict(config)
    _check_quantisation(take_quantisation(raw))
    parsed = read_fields(
        raw,
        DeepseekV4Config,
        "deepseek_v4",
        fixed=FIXED,
        silent=SILENT | STALE,
        derived={"rounded": True},
    )
    _check(parsed)
    return parsed
