"""Which format each module of a checkpoint is in, as config.json's quantization_config says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from dgpp.checkpoint.formats import (
    BF16,
    FP8_BLOCK,
    FP8_CHANNEL,
    INT4_PACKED,
    INT8_PACKED,
    NVFP4_COMPRESSED,
    Format,
)
from dgpp.models.config_fields import list_at, object_at, refuse

FIELD = "quantization_config"
GROUPS = f"{FIELD}.config_groups"


def take_quantisation(raw: dict[str, Any]) -> Mapping[str, Any] | None:
    """The quantization_config of a config.json, out of which it is taken; None where it has none.
    Raises CheckpointError where it is no object."""
    found = raw.pop(FIELD, None)
    return None if found is None else object_at(FIELD, found)


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


# By a group's format: what its `weights` must say, and the formats by their bits.
COMPRESSED: dict[str, tuple[dict[str, Any], dict[int, Format]]] = {
    "pack-quantized": (
        {"type": "int", "strategy": "group", "group_size": 64, "symmetric": True},
        {4: INT4_PACKED, 8: INT8_PACKED},
    ),
    "nvfp4-pack-quantized": (
        {"type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True},
        {4: NVFP4_COMPRESSED},
    ),
    "float-quantized": (
        {"type": "float", "strategy": "channel", "symmetric": True},
        {8: FP8_CHANNEL},
    ),
}
MIXED = "mixed-precision"
"""The format of a file whose groups have formats of their own."""


def _group_format(kind: str, weights: Mapping[str, Any], field: str) -> Format:
    wanted, by_bits = COMPRESSED[kind]
    for key, value in wanted.items():
        if weights.get(key) != value:
            raise refuse(f"{field}.{key}", f"is {weights.get(key)!r}, not {value!r}")
    if weights.get("actorder") is not None or weights.get("dynamic"):
        raise refuse(field, "has an order of activations or dynamic scales")
    bits = weights.get("num_bits")
    # What is in the file need not be hashable.
    if bits not in list(by_bits):
        known = " or ".join(map(str, by_bits))
        raise refuse(f"{field}.num_bits", f"is {bits!r}, not {known}")
    return by_bits[bits]


def compressed_tensors(found: Mapping[str, Any], served: Set[str]) -> Quantised:
    """compressed-tensors' groups in the formats `served`, of which a file has one or, mixed,
    several. Raises CheckpointError naming the field."""
    if found.get("quant_method") != "compressed-tensors":
        method = found.get("quant_method")
        raise refuse(f"{FIELD}.quant_method", f"is {method!r}, not 'compressed-tensors'")
    whole, known = found.get("format"), sorted(served)
    if whole not in known and (whole != MIXED or len(served) == 1):
        raise refuse(f"{FIELD}.format", f"is {whole!r}, not {' or '.join(map(repr, known))}")
    if found.get("kv_cache_scheme") is not None:
        raise refuse(f"{FIELD}.kv_cache_scheme", f"is {found['kv_cache_scheme']!r}, not None")
    groups = []
    for name, told in object_at(GROUPS, found.get("config_groups")).items():
        field = f"{GROUPS}.{name}"
        group = object_at(field, told)
        kind = group.get("format", whole)
        if kind not in known or whole not in (kind, MIXED):
            raise refuse(f"{field}.format", f"is {kind!r}, not {' or '.join(map(repr, known))}")
        weights = object_at(f"{field}.weights", group.get("weights"))
        stored = _group_format(kind, weights, f"{field}.weights")
        place = f"{field}.targets"
        targets = list_at(place, group.get("targets"))
        groups += [(_pattern(target, place), stored) for target in targets]
    place = f"{FIELD}.ignore"
    ignored = [_pattern(target, place) for target in list_at(place, found.get("ignore"))]
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
    left = list_at(f"{field}.modules_to_not_convert", found.get("modules_to_not_convert"))
    ignored = [re.compile(rf"{re.escape(str(module))}(\.|$)") for module in left]
    return Quantised(tuple(ignored), ((re.compile(""), FP8_BLOCK),))


def mixed(found: Mapping[str, Any]) -> Quantised:
    """FP8 by blocks, the routed experts of the layers named in NVFP4 of compressed-tensors. Raises
    CheckpointError naming the field."""
    place = f"{FIELD}.fp8"
    base = fp8_blocks(object_at(place, found.get("fp8")), place)
    place = f"{FIELD}.routed_experts"
    experts = object_at(place, found.get("routed_experts"))
    wanted = {
        "format": "nvfp4-pack-quantized",
        "num_bits": 4,
        "group_size": 16,
        "symmetric": True,
    }
    for key, value in wanted.items():
        if experts.get(key) != value:
            raise refuse(f"{place}.{key}", f"is {experts.get(key)!r}, not {value!r}")
    held = list_at(f"{place}.layers", experts.get("layers"))
    for layer in held:
        if type(layer) is not int:
            raise refuse(f"{place}.layers", f"has {repr(layer)[:60]}, not an integer")
    layers = "|".join(map(str, held))
    pattern = re.compile(rf"model\.layers\.(?:{layers})\.mlp\.experts\.")
    return Quantised(base.ignored, ((pattern, NVFP4_COMPRESSED), *base.groups))


def modelopt_ignored(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Shell-style names of the modules that a modelopt NVFP4 checkpoint leaves in bf16. Raises
    CheckpointError naming the field."""
    for key, wanted in (("quant_method", "modelopt"), ("quant_algo", "NVFP4")):
        if found.get(key) != wanted:
            raise refuse(f"{FIELD}.{key}", f"is {found.get(key)!r}, not {wanted!r}")
    for name, told in object_at(GROUPS, found.get("config_groups")).items():
        field = f"{GROUPS}.{name}"
        weights = object_at(f"{field}.weights", object_at(field, told).get("weights"))
        if (weights.get("num_bits"), weights.get("group_size")) != (4, 16):
            raise refuse(f"{field}.weights", "is not 4 bits in groups of 16")
    if found.get("ignore") is None:
        raise refuse(f"{FIELD}.ignore", "is missing")
    return tuple(str(pattern) for pattern in list_at(f"{FIELD}.ignore", found["ignore"]))
