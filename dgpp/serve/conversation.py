"""The `messages` of a chat request to a conversation."""

from __future__ import annotations

import json
from typing import Any

from dgpp.serve import limits
from dgpp.serve.errors import ApiError, invalid
from dgpp.serve.fields import Fields
from dgpp.serve.jsonsafe import parse_object, shorten
from dgpp.text.messages import Message, ToolCall

_ROLES = ("developer", "system", "user", "assistant", "tool")
_THINKING = ("thinking", "redacted_thinking")
_KNOWN = ("text", "refusal", *_THINKING)


def parse_messages(fields: Fields) -> tuple[Message, ...]:
    """Raises ApiError naming the message and its member."""
    entries = fields.array("messages", limits.MESSAGES)
    if not entries:
        raise invalid("messages must hold at least one message", "messages")
    return tuple(
        _message(fields.element("messages", index, entry)) for index, entry in enumerate(entries)
    )


def _message(fields: Fields) -> Message:
    role = fields.one_of("role", _ROLES)
    if role is None:
        raise invalid(f"{fields.path('role')} is required", fields.path("role"))
    for name in ("audio", "function_call", "prompt_cache_breakpoint"):
        fields.refuse(name)
    role = "system" if role == "developer" else role
    content, thinking = _content(fields, role)
    reasoning = None
    calls: tuple[ToolCall, ...] = ()
    if role == "assistant":
        reasoning = fields.text("reasoning_content")
        reasoning = thinking if reasoning is None else reasoning
        calls = _tool_calls(fields)
        if content is None:
            content = fields.text("refusal")
    else:
        fields.refuse("reasoning_content")
        fields.refuse("tool_calls", ([],))
    if content is None and not calls:
        at = fields.path("content")
        raise invalid(f"{at} is required", at)
    call_id = None
    if role == "tool":
        call_id = fields.needed_text("tool_call_id", longest=limits.NAME_CHARS)
    return Message(
        role=role,
        content=content,
        name=fields.text("name", longest=limits.NAME_CHARS),
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=call_id,
    )


def _content(fields: Fields, role: str) -> tuple[str | None, str | None]:
    """Text of `content` with its parts joined, and the thinking parts joined by blank lines."""
    value = fields.get("content")
    if value is None or isinstance(value, str):
        return value, None
    parts = fields.array("content", limits.CONTENT_PARTS) or []
    texts: list[str] = []
    thoughts: list[str] = []
    thinking_seen = False
    for index, entry in enumerate(parts):
        part = fields.element("content", index, entry)
        kind = part.needed_text("type")
        part.refuse("prompt_cache_breakpoint")
        if kind == "text":
            texts.append(part.needed_text("text"))
        elif kind == "refusal" and role == "assistant" and len(parts) == 1:
            texts.append(part.needed_text("refusal"))
        elif kind in _THINKING and role == "assistant":
            thinking_seen = True
            if kind == "thinking":
                thoughts.append(part.needed_text("thinking"))
        else:
            raise _wrong_part(part, kind, role)
    if not texts and not thinking_seen:
        return None, None
    return "".join(texts), "\n\n".join(thoughts) if thoughts else None


def _wrong_part(part: Fields, kind: str, role: str) -> ApiError:
    at = part.path("type")
    if kind in _KNOWN or (kind == "file" and role != "user"):
        return invalid(f"{at}: {kind} is not a content type for the role {role}", at)
    message = f"{at}: {shorten(kind)} parts are not supported"
    return invalid(message, at, "unsupported_content_type")


def _tool_calls(fields: Fields) -> tuple[ToolCall, ...]:
    entries = fields.array("tool_calls", limits.TOOL_CALLS) or []
    return tuple(
        _tool_call(fields.element("tool_calls", index, entry))
        for index, entry in enumerate(entries)
    )


def _tool_call(fields: Fields) -> ToolCall:
    kind = fields.text("type") or "function"
    if kind == "custom":
        return _custom_call(fields)
    function = fields.object("function")
    if kind != "function" or function is None:
        at = fields.path("function")
        raise invalid(f"{at} is required, with the type function", at)
    return ToolCall(
        id=fields.needed_text("id", longest=limits.NAME_CHARS),
        name=function.needed_text("name", longest=limits.NAME_CHARS),
        arguments=call_arguments(function),
    )


def _custom_call(fields: Fields) -> ToolCall:
    """A custom tool's call as the model wrote it: one string argument, `input`."""
    custom = fields.object("custom")
    if custom is None:
        at = fields.path("custom")
        raise invalid(f"{at} is required, with the type custom", at)
    name = fields.needed_text("id", longest=limits.NAME_CHARS)
    if not name:
        raise invalid(f"{fields.path('id')} must not be empty", fields.path("id"))
    return ToolCall(
        id=name,
        name=custom.needed_text("name", longest=limits.NAME_CHARS),
        arguments=json.dumps({"input": custom.needed_text("input")}, ensure_ascii=False),
    )


def call_arguments(function: Fields) -> str:
    """The text of a JSON object, whether the client sent the object or its text."""
    value: Any = function.get("arguments")
    at = function.path("arguments")
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise invalid(f"{at} must be an object or the text of one", at)
    try:
        parse_object(value.encode())
    except ApiError as error:
        raise invalid(f"{at} is not the text of a JSON object: {error.message}", at) from error
    return value
