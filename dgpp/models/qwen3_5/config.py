"""Qwen3.8-27B's config.json, parsed strictly: the text model's; images are not served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgpp.models.quantisation import (
    UNQUANTISED,
    Quantised,
    compressed_tensors,
    fp8_blocks,
    take_quantisation,
)
from dgpp.models.qwen.config import FIXED as SHARED
from dgpp.models.qwen.config import HybridConfig, check_hybrid, read_hybrid

FIXED: dict[str, tuple[Any, ...]] = {
    **SHARED,
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
}
SERVED = frozenset({"nvfp4-pack-quantized", "float-quantized"})
"""The formats of compressed-tensors that a release has: NVFP4 MLPs, FP8 by channels elsewhere."""


class Qwen35Config(HybridConfig, frozen=True, kw_only=True):
    """The sizes of a qwen3_5 text model, under the names of config.json."""

    intermediate_size: int


def _quantised(found: Mapping[str, Any] | None) -> Quantised:
    if found is None:
        return UNQUANTISED
    if found.get("quant_method") == "compressed-tensors":
        return compressed_tensors(found, SERVED)
    return fp8_blocks(found)


def parse(config: dict[str, Any]) -> Qwen35Config:
    """Qwen35Config from a parsed config.json. Raises CheckpointError naming the field."""
    config = dict(config)
    quantised = _quantised(take_quantisation(config))
    parsed = read_hybrid(config, Qwen35Config, "qwen3_5", fixed=FIXED, quantised=quantised)
    check_hybrid(parsed, {})
    return parsed
