"""The `tools` of a chat request, and which of them the model may call."""

from __future__ import annotations

import json
import re
from typing import Any

from dgpp.serve import limits
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.text.messages import Tool

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = ("name", "description", "parameters", "strict")
CONSTRAINED = "constrained_decoding_unsupported"


def parse_tools(fields: Fields) -> tuple[tuple[Tool, ...], bool]:
    """The tools, and whether they may be called. Raises ApiError naming the member.

    `tool_choice` none shows the tools and lets none be called.
    """
    entries = fields.array("tools", limits.TOOLS) or []
    tools = tuple(
        _tool(fields.element("tools", index, entry)) for index, entry in enumerate(entries)
    )
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools[{index}]: a second tool {tool.name}", f"tools[{index}]")
        seen.add(tool.name)
    if not fields.boolean("parallel_tool_calls", default=True):
        message = "parallel_tool_calls: false is not supported yet"
        raise invalid(message, "parallel_tool_calls", CONSTRAINED)
    return tools, _may_call(fields, bool(tools))


def _may_call(fields: Fields, offered: bool) -> bool:
    choice = fields.get("tool_choice")
    if choice is None or choice == "auto":
        if choice is not None and not offered:
            raise invalid("tool_choice needs tools", "tool_choice")
        return offered
    if choice == "none":
        return False
    if not offered:
        raise invalid("tool_choice needs tools", "tool_choice")
    if choice == "required" or isinstance(choice, dict):
        message = "tool_choice can be auto or none; a forced call is not supported yet"
        raise invalid(message, "tool_choice", CONSTRAINED)
    raise invalid("tool_choice must be auto, none, required or an object", "tool_choice")


def _tool(fields: Fields) -> Tool:
    """A wrapped tool (`type`, and an object named after it) or a flat one."""
    kind = fields.text("type") or "function"
    if kind not in ("function", "custom"):
        at = fields.path("type")
        raise invalid(f"{at} must be function or custom, not {shorten(kind)!r}", at)
    inner = fields.object(kind) or fields
    name = inner.needed_text("name")
    at = inner.path("name")
    if not TOOL_NAME.fullmatch(name):
        raise invalid(f"{at} must be 1 to 64 letters, digits, underscores or hyphens", at)
    inner.text("description")
    inner.object("parameters")
    if inner.boolean("strict"):
        at = inner.path("strict")
        raise invalid(f"{at}: true is not supported yet", at, CONSTRAINED)
    if kind == "custom":
        return Tool(name, json.dumps(_custom(inner), ensure_ascii=False), custom=True)
    shown = {key: value for key, value in inner.members.items() if key in _SHOWN}
    return Tool(name, json.dumps(shown, ensure_ascii=False))


def _custom(fields: Fields) -> dict[str, Any]:
    """A custom tool as the function that models know: one string argument, `input`."""
    form = fields.object("format")
    if form is not None and form.one_of("type", ("text", "grammar")) == "grammar":
        at = form.path("type")
        raise invalid(f"{at}: grammar is not supported yet", at, CONSTRAINED)
    described = {"description": text} if (text := fields.text("description")) else {}
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    return {"name": fields.needed_text("name"), **described, "parameters": parameters}
