"""The `response_format` of a chat request."""

from __future__ import annotations

import json
from typing import Any

from dgpp.serve import limits
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Fields
from dgpp.serve.request import JsonAnswer
from dgpp.serve.tools import TOOL_NAME


def parse_response_format(fields: Fields) -> JsonAnswer | None:
    """What JSON the answer must be; None for text. Raises ApiError naming the member."""
    form = fields.object("response_format")
    if form is None:
        return None
    kind = form.one_of("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise invalid("response_format.type is required", "response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonAnswer("{}", fields.path("response_format"))
    given = form.object("json_schema")
    if given is None:
        raise invalid("response_format.json_schema is required", "response_format.json_schema")
    return json_schema_answer(given)


def json_schema_answer(given: Fields) -> JsonAnswer:
    """`name`, `schema` and `strict` of an answer's schema."""
    if not TOOL_NAME.fullmatch(given.needed_text("name")):
        at = given.path("name")
        raise invalid(f"{at} must be 1 to 64 letters, digits, underscores or hyphens", at)
    given.text("description")
    schema: Any = given.get("schema")
    at = given.path("schema")
    if not isinstance(schema, (dict, bool)):
        raise invalid(f"{at} must be a schema: an object or a boolean", at)
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > limits.SCHEMA_CHARS:
        raise invalid(f"{at} has {len(text)} characters, the limit is {limits.SCHEMA_CHARS}", at)
    return JsonAnswer(text, at, strict=given.boolean("strict"))
