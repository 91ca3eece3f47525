"""The `tools` of a chat request, and which of them the model may call."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from dgpp.serve import limits
from dgpp.serve.errors import invalid
from dgpp.serve.fields import Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.text.messages import Tool

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = ("name", "description", "parameters", "strict")


class Offer(NamedTuple):
    """The tools of a request and how they may be called; the members of GenerationRequest."""

    tools: tuple[Tool, ...] = ()
    tool_paths: tuple[str, ...] = ()
    callable: bool = False
    must_call: bool = False
    only: tuple[str, ...] = ()
    named: bool = False
    parallel: bool = True


def parse_tools(fields: Fields) -> Offer:
    """Raises ApiError naming the member. `tool_choice` none shows the tools and lets none be
    called."""
    entries = fields.array("tools", limits.TOOLS) or []
    read = [_tool(fields.element("tools", index, entry)) for index, entry in enumerate(entries)]
    tools = tuple(tool for tool, _ in read)
    paths = tuple(path for _, path in read)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools[{index}]: a second tool {tool.name}", f"tools[{index}]")
        seen.add(tool.name)
    parallel = fields.boolean("parallel_tool_calls", default=True)
    return _choice(fields, Offer(tools, paths, callable=bool(tools), parallel=parallel))


def _choice(fields: Fields, offer: Offer) -> Offer:
    choice = fields.get("tool_choice")
    if choice is None:
        return offer
    if choice == "none":
        return offer._replace(callable=False)
    if not offer.tools:
        raise invalid("tool_choice needs tools", "tool_choice")
    if choice == "auto":
        return offer
    if choice == "required":
        return offer._replace(must_call=True)
    form = fields.object("tool_choice") if isinstance(choice, dict) else None
    if form is None:
        raise invalid("tool_choice must be auto, none, required or an object", "tool_choice")
    kind = form.one_of("type", ("function", "custom", "allowed_tools"))
    if kind is None:
        raise invalid("tool_choice.type is required", "tool_choice.type")
    if kind != "allowed_tools":
        name = _named(form, kind, offer)
        return offer._replace(must_call=True, only=(name,), named=True)
    return _allowed(form, offer)


def _named(form: Fields, kind: str, offer: Offer) -> str:
    """The name in `{"type": kind, kind: {"name"}}` or its flat form, which must be offered."""
    inner = form.object(kind) or form
    name = inner.needed_text("name")
    if name not in {tool.name for tool in offer.tools}:
        at = inner.path("name")
        raise invalid(f"{at}: {shorten(name)!r} is not among the tools", at)
    return name


def _allowed(form: Fields, offer: Offer) -> Offer:
    inner = form.object("allowed_tools") or form
    mode = inner.one_of("mode", ("auto", "required"))
    if mode is None:
        raise invalid(f"{inner.path('mode')} is required", inner.path("mode"))
    entries = inner.array("tools", limits.TOOLS)
    if not entries:
        at = inner.path("tools")
        raise invalid(f"{at} must name at least one tool", at)
    names = []
    for index, entry in enumerate(entries):
        one = inner.element("tools", index, entry)
        names.append(_named(one, one.one_of("type", ("function", "custom")) or "function", offer))
    return offer._replace(must_call=mode == "required", only=tuple(dict.fromkeys(names)))


def _tool(fields: Fields) -> tuple[Tool, str]:
    """A wrapped tool (`type`, and an object named after it) or a flat one, and where that which its
    calls are held to stands."""
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
    strict = inner.boolean("strict")
    if kind == "custom":
        text = json.dumps(_custom(inner), ensure_ascii=False)
        return Tool(name, text, custom=True, grammar=_grammar(inner)), inner.path("format")
    shown = {key: value for key, value in inner.members.items() if key in _SHOWN}
    text = json.dumps(shown, ensure_ascii=False)
    at = inner.path("parameters")
    if len(text) > limits.SCHEMA_CHARS:
        raise invalid(f"{at} has over {limits.SCHEMA_CHARS} characters", at)
    return Tool(name, text, strict=strict), at


def _custom(fields: Fields) -> dict[str, Any]:
    """A custom tool as the function that models know: one string argument, `input`."""
    described = {"description": text} if (text := fields.text("description")) else {}
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    return {"name": fields.needed_text("name"), **described, "parameters": parameters}


def _grammar(fields: Fields) -> tuple[str, str] | None:
    """What a custom tool's input must follow: (regex or lark, text)."""
    form = fields.object("format")
    if form is None or form.one_of("type", ("text", "grammar")) != "grammar":
        return None
    inner = form.object("grammar") or form
    syntax = inner.one_of("syntax", ("regex", "lark"))
    if syntax is None:
        raise invalid(f"{inner.path('syntax')} is required", inner.path("syntax"))
    return syntax, inner.needed_text("definition", longest=limits.SCHEMA_CHARS)
