"""A conversation as every front end hands it on, whatever its wire form was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import msgspec

from dgpp.text.spelled import members, spelled


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call the assistant made. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool the model is offered. `definition` is the JSON text of what its template shows,
    members in the client's order; `custom` tools take free text as their one argument `input`,
    held to `grammar` (syntax `regex` or `lark`, text) where there is one. `strict`: the model may
    not leave the schema."""

    name: str
    definition: str
    custom: bool = False
    strict: bool = False
    grammar: tuple[str, str] | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn, validated: text parts are joined, `developer` is `system`.

    `role` is system, user, assistant or tool. `content` is None only beside `tool_calls`.
    `reasoning` is None where the client sent none; an empty string was sent.
    """

    role: str
    content: str | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


def client_texts(messages: Iterable[Message]) -> Iterator[str]:
    """Every string of `messages` that a template may print and a client has written."""
    for message in messages:
        for text in (message.content, message.name, message.reasoning, message.tool_call_id):
            if text:
                yield text
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)


def template_tool(tool: Tool, mark: Callable[[str], str]) -> dict[str, Any]:
    """`tool` as templates read it, every string of the client's marked."""
    function = _mapped(json.loads(tool.definition), mark, _KEYWORDS)
    return {"type": "function", "function": function}


def template_message(
    message: Message, mark: Callable[[str], str], mark_answer: Callable[[str], str]
) -> dict[str, Any]:
    """`message` as templates read it: null content is "", call arguments are objects.

    `mark` goes over every text of the client's, `mark_answer` over the content of assistant
    messages.
    """
    content = message.content or ""
    marked = mark_answer(content) if message.role == "assistant" else mark(content)
    result: dict[str, Any] = {"role": message.role, "content": marked}
    if message.name is not None:
        result["name"] = mark(message.name)
    if message.reasoning is not None:
        result["reasoning_content"] = mark(message.reasoning)
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "id": mark(call.id),
                "type": "function",
                "function": {
                    "name": mark(call.name),
                    "arguments": _arguments(call.arguments, mark),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        result["tool_call_id"] = mark(message.tool_call_id)
    return result


def _arguments(text: str, mark: Callable[[str], str]) -> dict[str, Any]:
    """The arguments of a call, each to be written as it was written."""
    return {
        mark(name): spelled(_mapped(value, mark), mark(written))
        for name, value, written in members(text)
    }


_KEYWORDS = frozenset({"name", "description", "parameters", "strict", "type", "properties"})
_KEYWORDS |= {"required", "items", "enum", "format", "default"}
"""Members by which templates find their way in a tool: their names are fixed, so never marked."""


def _mapped(value: Any, mark: Callable[[str], str], known: Set[str] = frozenset()) -> Any:
    """`value` with every string in it marked, the names of members too unless they are `known`.
    Depth is bounded where requests enter."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, list):
        return [_mapped(item, mark, known) for item in value]
    if isinstance(value, dict):
        return {
            key if key in known else mark(key): _mapped(item, mark, known)
            for key, item in value.items()
        }
    return value
