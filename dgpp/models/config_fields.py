"""Strict reading of config.json: what a family does not know is refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

import msgspec

from dgpp.errors import CheckpointError

T = TypeVar("T", bound=msgspec.Struct)

SILENT = frozenset(
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
"""Fields that say nothing about the arithmetic."""

MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "num_hidden_layers": 1000,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "intermediate_size": 1 << 24,
    "moe_intermediate_size": 1 << 24,
    "n_shared_experts": 1 << 14,
    "max_position_embeddings": 1 << 40,
    "head_dim": 1 << 14,
}
"""Sizes are the file's, but a damaged one must not be planned for hours."""


SCALES = {
    "routed_scaling_factor": (1e-6, 1e6),
    "attention_value_scale": (1e-6, 1e6),
    "swiglu_limit": (0, 1e6),
}
"""What activations are multiplied or bounded by, from the least to the most; no limit is 0."""
LEAST_EPSILON = 1e-30
"""Far below any release's, and float32 still has it."""
MOST_EXPERTS = 1 << 14
MOST_THETA = 1e30
"""A base of rotary embedding, of which float32 has powers."""


def refuse(field: str, what: str) -> CheckpointError:
    """The error that names a field of config.json."""
    return CheckpointError(f"config.json: {field} {what}")


def object_at(field: str, found: object) -> Mapping[str, Any]:
    """`found`, the value of `field`, as an object, null as an empty one. Raises CheckpointError."""
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise refuse(field, f"is {repr(found)[:60]}, not an object")
    return found


def list_at(field: str, found: object) -> list[Any]:
    """`found`, the value of `field`, as a list, null as an empty one. Raises CheckpointError."""
    if found is None:
        return []
    if not isinstance(found, list):
        raise refuse(field, f"is {repr(found)[:60]}, not a list")
    return found


def read_fields(
    raw: Mapping[str, Any],
    kind: type[T],
    family: str,
    *,
    fixed: Mapping[str, tuple[Any, ...]],
    silent: Set[str] = SILENT,
    derived: Mapping[str, Any] | None = None,
) -> T:
    """`raw` as a `kind`, whose fields are config.json's. `fixed` fields may only have the values
    named, `silent` ones may say anything; `derived` are fields of `kind` that no file has. Raises
    CheckpointError naming the field."""
    found: dict[str, Any] = {}
    own = derived or {}
    for field, value in raw.items():
        if field in fixed:
            if value not in fixed[field]:
                raise refuse(field, f"is {value!r}, not {fixed[field][0]!r}")
        elif field in kind.__struct_fields__ and field not in own:
            found[field] = value
        elif field not in silent:
            raise refuse(field, f"is not known for {family}")
    try:
        return msgspec.convert({**found, **own}, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"config.json: {error}") from error


def check_sizes(config: msgspec.Struct, most: Mapping[str, int] | None = None) -> None:
    """Raises CheckpointError for a size that is below 1 or absurd: those of `MOST` that `config`
    has, and what `most` adds or bounds otherwise. Also for a scale that `SCALES` does not allow."""
    known = {field: limit for field, limit in MOST.items() if field in config.__struct_fields__}
    check_range(config, {**known, **(most or {})})
    for field, bounds in SCALES.items():
        if field in config.__struct_fields__:
            check_bounds(config, [field], *bounds)


def check_range(config: msgspec.Struct, most: Mapping[str, int], inside: str = "") -> None:
    """Raises CheckpointError for a size that is below 1 or absurd. `config` may be what the field
    `inside` of another holds, "linear_attn_config."."""
    for field, limit in most.items():
        value = getattr(config, field)
        if not 1 <= value <= limit:
            raise refuse(f"{inside}{field}", f"is {value}, not within 1..{limit}")


def check_bounds(
    config: msgspec.Struct, fields: Iterable[str], low: float, high: float, inside: str = ""
) -> None:
    """Raises CheckpointError naming the first of `fields` that is neither null nor within the
    bounds; `inside` as in `check_range`."""
    for field in fields:
        value = getattr(config, field)
        if value is not None and not low <= value <= high:
            raise refuse(f"{inside}{field}", f"is {value}, not within {low}..{high}")


def check_theta(config: msgspec.Struct, *fields: str) -> None:
    """Raises CheckpointError where rotary embedding could not turn by the base `fields`."""
    for field in fields or ("rope_theta",):
        if not 1 < getattr(config, field) <= MOST_THETA:
            raise refuse(
                field, f"is {getattr(config, field)}, not above 1 and at most {MOST_THETA:g}"
            )


def check_share(config: msgspec.Struct, whole: str, part: str) -> None:
    """Raises CheckpointError where `whole` is no multiple of `part`."""
    if getattr(config, whole) % getattr(config, part):
        raise refuse(whole, f"is not a multiple of {part}")


def check_multiples(config: msgspec.Struct, fields: Iterable[str], step: int) -> None:
    """Raises CheckpointError naming the first of `fields` that is no multiple of `step`."""
    for field in fields:
        if getattr(config, field) % step:
            raise refuse(field, f"is {getattr(config, field)}, not a multiple of {step}")


def check_least(config: msgspec.Struct, fields: Iterable[str], least: int) -> None:
    """Raises CheckpointError naming the first of `fields` that is below `least`."""
    for field in fields:
        if getattr(config, field) < least:
            raise refuse(field, f"is {getattr(config, field)}, below {least}")


def check_epsilon(config: msgspec.Struct, *fields: str) -> None:
    """Raises CheckpointError where `fields`, by default `rms_norm_eps`, are nothing that may keep a
    divisor from zero."""
    for field in fields or ("rms_norm_eps",):
        if not LEAST_EPSILON <= getattr(config, field) < 1:
            said = f"is {getattr(config, field)}, not at least {LEAST_EPSILON:g} and below 1"
            raise refuse(field, said)


def check_experts(
    config: msgspec.Struct, experts: str = "n_routed_experts", top: str = "num_experts_per_tok"
) -> None:
    """Raises CheckpointError where a token cannot have `top` of so many experts."""
    check_range(config, {experts: MOST_EXPERTS})
    check_range(config, {top: getattr(config, experts)})


def check_kinds(config: msgspec.Struct, field: str, allowed: Set[Any]) -> None:
    """Raises CheckpointError where `field` does not name one of `allowed` for each layer."""
    listed, layers = (getattr(config, name) for name in (field, "num_hidden_layers"))
    if len(listed) != layers or not set(listed) <= allowed:
        raise refuse(field, f"is not {layers} of {sorted(allowed)}")


def check_rotation(field: str, rotated: int, head_dim: int) -> None:
    """Raises CheckpointError where `rotated` values of a head cannot turn in pairs."""
    if rotated % 2 or not 0 < rotated <= head_dim:
        raise refuse(field, f"turns {rotated} of {head_dim} values")


def fold_rope(raw: dict[str, Any], fields: Set[str]) -> None:
    """Fold `rope_parameters` (newer files) into plain fields, which must not contradict it."""
    parameters = object_at("rope_parameters", raw.pop("rope_parameters", None))
    for field, value in parameters.items():
        if field in fields:
            if raw.setdefault(field, value) != value:
                raise refuse(f"rope_parameters.{field}", f"is {value!r}, {field} {raw[field]!r}")
        elif field not in ("rope_type", "type") or value != "default":
            raise refuse(f"rope_parameters.{field}", f"is {value!r}, which is not supported")


def text_fields(config: Mapping[str, Any], outer: Set[str]) -> dict[str, Any]:
    """The fields of `text_config`. What stands beside it is about images (`outer`), or must say the
    same. Raises CheckpointError naming the field."""
    if config.get("text_config") is None:
        raise refuse("text_config", "is missing")
    text = dict(object_at("text_config", config["text_config"]))
    for field, value in config.items():
        if field in outer | SILENT | {"text_config"}:
            continue
        if text.setdefault(field, value) != value:
            raise refuse(field, f"is {value!r}, text_config.{field} {text[field]!r}")
    return text
