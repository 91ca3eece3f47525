"""Which format each module of a checkpoint is in, as config.json's quantization_config says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgpp.checkpoint.formats import (
    BF16,
    FP8_BLOCK,
    INT4_PACKED,
    INT8_PACKED,
    NVFP4_COMPRESSED,
    Format,
)
from dgpp.models.config_fields import refuse

FIELD = "quantization_config"


@dataclass(frozen=True, slots=True)
class Quantised:
    """Formats by patterns of module names: what is ignored is bf16, then the first group whose
    pattern begins a module's name decides, else it is bf16."""

    ignored: tuple[re.Pattern[str], ...] = ()
    groups: tuple[tuple[re.Pattern[str], Format], ...] = ()

    def format(self, module: str) -> Format:
        """How the matrix of `module` is stored."""
        if any(pattern.match(module) for pattern in self.ignored):
            return BF16
        for pattern, stored in self.groups:
            if pattern.match(module):
                return stored
        return BF16


UNQUANTISED = Quantised()


def _pattern(target: object, field: str) -> re.Pattern[str]:
    """A target of compressed-tensors: a regular expression after `re:`, or a whole name."""
    text = str(target)
    try:
        return re.compile(text[3:] if text.startswith("re:") else rf"{re.escape(text)}$")
    except re.error as error:
        raise refuse(field, f"names {text!r}: {error}") from error


def _integer_format(weights: Mapping[str, Any], field: str) -> Format:
    wanted = {"type": "int", "strategy": "group", "group_size": 64, "symmetric": True}
    for key, value in wanted.items():
        if weights.get(key) != value:
            raise refuse(f"{field}.{key}", f"is {weights.get(key)!r}, not {value!r}")
    if weights.get("actorder") is not None or weights.get("dynamic"):
        raise refuse(field, "has an order of activations or dynamic scales")
    formats = {4: INT4_PACKED, 8: INT8_PACKED}
    bits = weights.get("num_bits")
    if bits not in formats:
        raise refuse(f"{field}.num_bits", f"is {bits!r}, not 4 or 8")
    return formats[bits]


def pack_quantized(found: Mapping[str, Any]) -> Quantised:
    """compressed-tensors' integers in groups of 64. Raises CheckpointError naming the field."""
    for key, wanted in (("quant_method", "compressed-tensors"), ("format", "pack-quantized")):
        if found.get(key) != wanted:
            raise refuse(f"{FIELD}.{key}", f"is {found.get(key)!r}, not {wanted!r}")
    if found.get("kv_cache_scheme") is not None:
        raise refuse(f"{FIELD}.kv_cache_scheme", f"is {found['kv_cache_scheme']!r}, not None")
    groups = []
    for name, group in found.get("config_groups", {}).items():
        field = f"{FIELD}.config_groups.{name}"
        if group.get("format", "pack-quantized") != "pack-quantized":
            raise refuse(f"{field}.format", f"is {group['format']!r}, not 'pack-quantized'")
        stored = _integer_format(group.get("weights", {}), f"{field}.weights")
        groups += [(_pattern(target, f"{field}.targets"), stored) for target in group["targets"]]
    ignored = [_pattern(target, f"{FIELD}.ignore") for target in found.get("ignore", [])]
    return Quantised(tuple(ignored), tuple(groups))


FP8_BLOCKS = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


def fp8_blocks(found: Mapping[str, Any], field: str = FIELD) -> Quantised:
    """FP8 by blocks of 128 × 128, save for the modules named or what is under them. Raises
    CheckpointError naming the field."""
    for key, wanted in FP8_BLOCKS.items():
        if found.get(key) != wanted:
            raise refuse(f"{field}.{key}", f"is {found.get(key)!r}, not {wanted!r}")
    left = found.get("modules_to_not_convert", [])
    ignored = [re.compile(rf"{re.escape(str(module))}(\.|$)") for module in left]
    return Quantised(tuple(ignored), ((re.compile(""), FP8_BLOCK),))


def mixed(found: Mapping[str, Any]) -> Quantised:
    """FP8 by blocks, the routed experts of the layers named in NVFP4 of compressed-tensors. Raises
    CheckpointError naming the field."""
    base = fp8_blocks(found.get("fp8", {}), f"{FIELD}.fp8")
    experts = found.get("routed_experts", {})
    wanted = {
        "format": "nvfp4-pack-quantized",
        "num_bits": 4,
        "group_size": 16,
        "symmetric": True,
    }
    for key, value in wanted.items():
        if experts.get(key) != value:
            raise refuse(f"{FIELD}.routed_experts.{key}", f"is {experts.get(key)!r}, not {value!r}")
    layers = "|".join(str(int(layer)) for layer in experts.get("layers", []))
    pattern = re.compile(rf"model\.layers\.(?:{layers})\.mlp\.experts\.")
    return Quantised(base.ignored, ((pattern, NVFP4_COMPRESSED), *base.groups))
