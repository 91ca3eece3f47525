"""What each release of Qwen3.8-Flash-Next quantises, which its config.json says in part only.

FP8 names no module that it leaves alone, but converts the experts and the n-gram table. NVFP4
leaves the draft layer to FP8. The GPTQ hybrid has FP8 where its rules forbid GPTQ in the backbone.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from dgpp.checkpoint.formats import (
    BF16,
    FP8_BLOCK,
    INT4_GPTQ,
    INT8_GPTQ,
    NVFP4_MODELOPT,
    Format,
)
from dgpp.models.config_fields import list_at, object_at, refuse
from dgpp.models.quantisation import FIELD, Quantised, modelopt_ignored

TABLE = "ple.ple_embedding.ngram_embedding"
EXPERTS = re.compile(r"(?:model\.language_model|mtp)\.layers\.\d+\.mlp\.experts\.")
DRAFT_EXPERTS = re.compile(r"mtp\.layers\.\d+\.mlp\.experts\.")
HYBRID_FP8 = re.compile(
    r"model\.language_model\.layers\.\d+\.(?:"
    r"linear_attn\.(?:in_proj_qkv|in_proj_z|out_proj)$|self_attn\.[qkvo]_proj$|"
    r"mlp\.shared_expert\.)"
)
FP8 = {
    "activation_scheme": "dynamic",
    "weight_per_tensor": False,
    "act_per_tensor": False,
    "weight_block_size": [128, 128],
    "modules_to_convert": [TABLE],
}
GPTQ = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": True}
BITS: dict[int, Format] = {4: INT4_GPTQ, 8: INT8_GPTQ}


def _require(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        if found.get(key) != value:
            raise refuse(f"{FIELD}.{key}", f"is {found.get(key)!r}, not {value!r}")


def _fp8(found: Mapping[str, Any]) -> Quantised:
    _require(found, FP8)
    field = f"{FIELD}.modules_to_not_convert"
    for module in list_at(field, found.get("modules_to_not_convert")):
        if "expert" in str(module):
            raise refuse(field, f"names {module!r}")
    return Quantised(groups=((EXPERTS, FP8_BLOCK),))


def _nvfp4(found: Mapping[str, Any]) -> Quantised:
    ignored = [re.compile(fnmatch.translate(pattern)) for pattern in modelopt_ignored(found)]
    groups = [(DRAFT_EXPERTS, FP8_BLOCK), *((pattern, BF16) for pattern in ignored)]
    return Quantised(groups=(*groups, (re.compile(""), NVFP4_MODELOPT)))


def _gptq(found: Mapping[str, Any]) -> Quantised:
    """Rules of `dynamic`: `-:` patterns are left alone, `+:` ones have bits of their own."""
    _require(found, GPTQ)
    groups: list[tuple[re.Pattern[str], Format]] = [(HYBRID_FP8, FP8_BLOCK)]
    for rule, told in object_at(f"{FIELD}.dynamic", found.get("dynamic")).items():
        field = f"{FIELD}.dynamic.{rule}"
        said = object_at(field, told)
        try:
            pattern = re.compile(rule[2:])
        except re.error as error:
            raise refuse(field, f"is no pattern: {error}") from error
        if rule.startswith("-:") and not said:
            groups.append((pattern, BF16))
        elif rule.startswith("+:") and set(said) == {"bits"} and said["bits"] in list(BITS):
            groups.append((pattern, BITS[said["bits"]]))
        else:
            raise refuse(field, f"is {said!r}, neither left alone nor of 4 or 8 bits")
    return Quantised(groups=(*groups, (re.compile(""), INT4_GPTQ)))


_METHODS = {"fp8": _fp8, "modelopt": _nvfp4, "gptq": _gptq}


def release_forms(found: Mapping[str, Any]) -> Quantised:
    """The formats of a release's modules. Raises CheckpointError naming the field."""
    method = found.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise refuse(f"{FIELD}.quant_method", f"is {method!r}, not one of {sorted(_METHODS)}")
    return _METHODS[method](found)
