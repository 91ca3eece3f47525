"""A conversation as every front end hands it on, whatever its wire form was."""

from __future__ import annotations

import msgspec


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call the assistant made. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


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
