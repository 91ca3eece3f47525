"""The `input` of a response request to a conversation."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from dgpp.serve import limits
from dgpp.serve.conversation import call_arguments
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.fields import Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.text.messages import Message, ToolCall

_ROLES = ("developer", "system", "user", "assistant")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def parse_input(fields: Fields) -> list[Message]:
    """Neighbouring items of the assistant's are one turn. Raises ApiError naming the item."""
    value = fields.get("input")
    if isinstance(value, str):
        return [Message("user", value)]
    entries = fields.array("input", limits.MESSAGES)
    if not entries:
        raise invalid("input must be a text or at least one item", "input")
    found: list[Message] = []
    for index, entry in enumerate(entries):
        message = _item(fields.element("input", index, entry))
        if message.role == "assistant" and found and found[-1].role == "assistant":
            message = _joined(found.pop(), message)
        found.append(message)
    return [replace(m, content=m.content or "") for m in found]


def _item(item: Fields) -> Message:
    kind = item.text("type") or "message"
    if kind == "message":
        return _message(item)
    if kind == "function_call":
        arguments = call_arguments(item)
        return _call(item, arguments)
    if kind == "custom_tool_call":
        text = item.needed_text("input")
        return _call(item, json.dumps({"input": text}, ensure_ascii=False))
    if kind in _OUTPUTS:
        call = item.needed_text("call_id", longest=limits.NAME_CHARS)
        return Message("tool", _text(item, "output"), tool_call_id=call)
    if kind == "reasoning":
        return Message("assistant", None, reasoning=_reasoning(item))
    at = item.path("type")
    raise invalid(f"{at}: {shorten(kind)} items are not supported", at, "unsupported_content_type")


def _message(item: Fields) -> Message:
    role = item.one_of("role", _ROLES)
    if role is None:
        raise invalid(f"{item.path('role')} is required", item.path("role"))
    return Message("system" if role == "developer" else role, _text(item, "content"))


def _call(item: Fields, arguments: str) -> Message:
    call = ToolCall(
        id=item.needed_text("call_id", longest=limits.NAME_CHARS),
        name=item.needed_text("name", longest=limits.NAME_CHARS),
        arguments=arguments,
    )
    return Message("assistant", None, tool_calls=(call,))


def _text(item: Fields, name: str) -> str:
    """A text, or text parts joined."""
    value: Any = item.get(name)
    if isinstance(value, str):
        return value
    parts = item.array(name, limits.CONTENT_PARTS)
    if parts is None:
        raise invalid(f"{item.path(name)} is required", item.path(name))
    texts = []
    for index, entry in enumerate(parts):
        part = item.element(name, index, entry)
        kind = part.needed_text("type")
        if kind not in ("input_text", "output_text", "text", "refusal"):
            raise _unknown(part, kind)
        texts.append(part.needed_text("refusal" if kind == "refusal" else "text"))
    return "".join(texts)


def _reasoning(item: Fields) -> str:
    """What was thought; a summary stands in where nothing else was sent."""
    for name in ("content", "summary"):
        parts = item.array(name, limits.CONTENT_PARTS)
        if parts:
            entries = (item.element(name, index, part) for index, part in enumerate(parts))
            return "\n\n".join(part.needed_text("text") for part in entries)
    return ""


def _unknown(part: Fields, kind: str) -> ApiError:
    at = part.path("type")
    return invalid(f"{at}: {shorten(kind)} is not supported", at, "unsupported_content_type")


def _joined(first: Message, second: Message) -> Message:
    content = "".join(m.content for m in (first, second) if m.content is not None)
    thoughts = [m.reasoning for m in (first, second) if m.reasoning is not None]
    return Message(
        "assistant",
        content,
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=(*first.tool_calls, *second.tool_calls),
    )
