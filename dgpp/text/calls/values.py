"""What the text of an argument means, by the schema that the tool declared for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_DEEPEST = 8


class ToolSchema:
    """One offered tool: which arguments it has, and of which JSON types each may be.

    `closed`: no other argument than the declared ones is meant (additionalProperties is not true).
    `custom`: the tool takes free text, handed over as its one argument `input`.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Any] | None, *, custom: bool = False
    ) -> None:
        self.name = name
        self.custom = custom
        given = parameters or {}
        declared = given.get("properties")
        properties = declared if isinstance(declared, Mapping) else {}
        self._types = {key: types_of(schema, given) for key, schema in properties.items()}
        if custom:
            self._types = {"input": frozenset({"string"})}
        self.closed = custom or (bool(properties) and given.get("additionalProperties") is not True)

    def declares(self, key: str) -> bool:
        """Whether `key` can be an argument of this tool."""
        return not self.closed or key in self._types

    def types(self, key: str) -> frozenset[str]:
        """The JSON types that argument `key` may have; all of them where nothing is declared."""
        return self._types.get(key, ANY)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that `schema` allows, as far as it says; `root` holds its `$defs`."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return ANY
    found = ANY
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found &= types_of(_resolve(reference, root), root, depth + 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        declared = [declared]
    if isinstance(declared, list):
        names = frozenset(name for name in declared if isinstance(name, str))
        found &= (names | {"integer"}) if "number" in names else names
    if isinstance(schema.get("enum"), list):
        found &= frozenset(type_of(value) for value in schema["enum"])
    if "const" in schema:
        found &= {type_of(schema["const"])}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            branches = (types_of(branch, root, depth + 1) for branch in schema[key])
            found &= frozenset().union(*branches)
    if isinstance(schema.get("allOf"), list):
        for branch in schema["allOf"]:
            found &= types_of(branch, root, depth + 1)
    return found


def type_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    kinds = ((int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


def is_json(text: str) -> bool:
    """Whether `text` is one complete JSON value."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def json_value(text: str, types: frozenset[str]) -> str:
    """The JSON text of the argument that was written as `text`.

    JSON of an allowed type is passed on as it was written; anything else is a string.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json_string(text)
    kind = type_of(value)
    if kind == "string" and "string" in types:
        # Where strings are written bare, quotes are part of the string.
        return json_string(text)
    if kind in types or (kind == "integer" and "number" in types):
        return text.strip()
    return json_string(text) if "string" in types else text.strip()


def json_string(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
