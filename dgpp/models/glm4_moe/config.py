"""GLM-4.7's config.json, parsed strictly: what the forward pass does not know is named."""

from __future__ import annotations

import fnmatch
from typing import Any

import msgspec

from dgpp.checkpoint.formats import BF16, NVFP4_MODELOPT, Format
from dgpp.errors import CheckpointError

# Fields that say nothing about the arithmetic.
IGNORED = frozenset(
    {
        "architectures",
        "model_type",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "initializer_range",
        "use_cache",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "_name_or_path",
        "output_router_logits",
        "router_aux_loss_coef",
    }
)
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "n_group": (1,),
    "topk_group": (1,),
    "rope_scaling": (None,),
    "rope_interleave": (False,),
}


class Glm4MoeConfig(msgspec.Struct, frozen=True):
    """The sizes of a glm4_moe model, under the names of config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    first_k_dense_replace: int
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    rms_norm_eps: float
    head_dim: int
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    attention_bias: bool = False
    use_qk_norm: bool = False
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 0
    unquantised: tuple[str, ...] | None = None
    """Shell-style names of modules left in bf16; None when nothing is quantised."""

    @property
    def rotated(self) -> int:
        """Leading dimensions of a head that rotary embedding turns."""
        return int(self.head_dim * self.partial_rotary_factor)

    def format(self, module: str) -> Format:
        """How the checkpoint stores the matrix of `module`."""
        if self.unquantised is None:
            return BF16
        left = any(fnmatch.fnmatchcase(module, pattern) for pattern in self.unquantised)
        return BF16 if left else NVFP4_MODELOPT


def _fail(field: str, what: str) -> CheckpointError:
    return CheckpointError(f"config.json: {field} {what}")


def _rope(raw: dict[str, Any]) -> None:
    """Fold `rope_parameters` (newer files) into the two plain fields."""
    parameters = raw.pop("rope_parameters", None)
    if parameters is None:
        return
    if not isinstance(parameters, dict):
        raise _fail("rope_parameters", "is not an object")
    for field, value in parameters.items():
        if field in ("rope_theta", "partial_rotary_factor"):
            raw[field] = value
        elif field not in ("rope_type", "type") or value != "default":
            raise _fail(f"rope_parameters.{field}", f"is {value!r}, which is not supported")


def _unquantised(raw: dict[str, Any]) -> tuple[str, ...] | None:
    """The ignore list of a modelopt NVFP4 checkpoint; None without quantisation."""
    quantisation = raw.pop("quantization_config", None)
    if quantisation is None:
        return None
    field = "quantization_config"
    for key, wanted in (("quant_method", "modelopt"), ("quant_algo", "NVFP4")):
        if quantisation.get(key) != wanted:
            raise _fail(f"{field}.{key}", f"is {quantisation.get(key)!r}, not {wanted!r}")
    for name, group in quantisation.get("config_groups", {}).items():
        weights = group.get("weights", {})
        if (weights.get("num_bits"), weights.get("group_size")) != (4, 16):
            raise _fail(f"{field}.config_groups.{name}.weights", "is not 4 bits in groups of 16")
    ignored = quantisation.get("ignore")
    if not isinstance(ignored, list):
        raise _fail(f"{field}.ignore", "is missing")
    return tuple(str(pattern) for pattern in ignored)


MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "intermediate_size": 1 << 24,
    "max_position_embeddings": 1 << 40,
    "head_dim": 1 << 14,
}
"""Sizes are the file's, but a damaged one must not be planned for hours."""


def _check_sizes(config: Glm4MoeConfig) -> None:
    for field, most in MOST.items():
        if not 1 <= getattr(config, field) <= most:
            raise _fail(field, f"is {getattr(config, field)}, not within 1..{most}")
    if config.rope_theta <= 0:
        raise _fail("rope_theta", f"is {config.rope_theta}, not above 0")
    if not 0 < config.rms_norm_eps < 1:
        raise _fail("rms_norm_eps", f"is {config.rms_norm_eps}, not between 0 and 1")
    for field, most in (("n_routed_experts", 1 << 14), ("num_nextn_predict_layers", 16)):
        if getattr(config, field) > most:
            raise _fail(field, f"is {getattr(config, field)}, above {most}")
    if config.num_attention_heads % config.num_key_value_heads:
        raise _fail("num_attention_heads", "is not a multiple of num_key_value_heads")
    if config.rotated % 2 or not 0 < config.rotated <= config.head_dim:
        raise _fail("partial_rotary_factor", f"turns {config.rotated} of {config.head_dim} values")
    dense = config.first_k_dense_replace >= config.num_hidden_layers
    routed = not dense or config.num_nextn_predict_layers > 0
    if routed and not 1 <= config.num_experts_per_tok <= config.n_routed_experts:
        raise _fail("num_experts_per_tok", f"is not within 1..{config.n_routed_experts}")


def parse(config: dict[str, Any]) -> Glm4MoeConfig:
    """Glm4MoeConfig from a parsed config.json. Raises CheckpointError naming the field."""
    raw = {name: value for name, value in config.items() if name not in IGNORED}
    _rope(raw)
    unquantised = _unquantised(raw)
    for field, allowed in FIXED.items():
        if field in raw and raw.pop(field) not in allowed:
            raise _fail(field, f"is {config[field]!r}, not {allowed[0]!r}")
    for field in raw:
        if field not in Glm4MoeConfig.__struct_fields__ or field == "unquantised":
            raise _fail(field, "is not known for glm4_moe")
    if "head_dim" not in raw and {"hidden_size", "num_attention_heads"} <= raw.keys():
        raw["head_dim"] = raw["hidden_size"] // max(1, raw["num_attention_heads"])
    try:
        parsed = msgspec.convert({**raw, "unquantised": unquantised}, Glm4MoeConfig)
    except msgspec.ValidationError as error:
        message = f"config.json: {error}"
        raise CheckpointError(message) from error
    _check_sizes(parsed)
    return parsed
