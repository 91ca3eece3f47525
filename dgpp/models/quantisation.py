"""Which format each module of a checkpoint is in, as config.json's quantization_config says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgpp.checkpoint.formats import BF16, INT4_PACKED, INT8_PACKED, Format
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
