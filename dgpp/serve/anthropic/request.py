"""Bodies of POST /v1/messages to requests: Anthropic's form of a chat."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from dgpp.sample.params import SamplingParams
from dgpp.serve import limits
from dgpp.serve.errors import invalid, model_not_found
from dgpp.serve.fields import Body, Fields
from dgpp.serve.jsonsafe import shorten
from dgpp.serve.options import ignored_fields
from dgpp.serve.reasoning import variables
from dgpp.serve.request import GenerationRequest
from dgpp.serve.served import ServedModel, with_top_p
from dgpp.serve.tools import TOOL_NAME, Offer
from dgpp.text.efforts import EFFORTS
from dgpp.text.messages import Message, Tool, ToolCall

_KNOWN = frozenset(
    {"model", "messages", "max_tokens", "system", "temperature", "top_p", "top_k", "stream"}
    | {
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "metadata",
        "service_tier",
    }
)
_THINKING = ("enabled", "disabled", "adaptive")


def parse_messages(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in `body`. Raises ApiError naming the field."""
    fields = Fields.of(body)
    tokens = fields.integer("max_tokens", 1, limits.MAX_TOKENS)
    if tokens is None:
        raise invalid("max_tokens is required", "max_tokens")
    return replace(_conversation(fields, id, model), max_tokens=tokens)


def parse_count(body: Body, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    """The request in a body of /v1/messages/count_tokens: the same without `max_tokens`."""
    return _conversation(Fields.of(body), id, model)


def _conversation(fields: Fields, id: str, model: ServedModel) -> GenerationRequest:  # noqa: A002
    name = fields.needed_text("model")
    if not model.answers_to(name):
        raise model_not_found(shorten(name))
    offer = _offer(fields)
    return GenerationRequest(
        id=id,
        kind="messages",
        model=name,
        messages=(*_system(fields), *_messages(fields)),
        template_kwargs=_reasoning(fields, model),
        sampling=_sampling(fields, model),
        stop=_stop(fields),
        stream=fields.boolean("stream"),
        ping_interval=model.ping_interval,
        ignored=ignored_fields(fields, _KNOWN),
        **offer._asdict(),
    )


def _sampling(fields: Fields, model: ServedModel) -> SamplingParams:
    asked = {
        "temperature": fields.number("temperature", 0.0, 1.0),
        "top_p": fields.number("top_p", 0.0, 1.0),
        "top_k": fields.integer("top_k", 0, limits.TOP_K),
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if 0.0 < given.get("temperature", 1.0) < limits.LEAST_TEMPERATURE:
        given["temperature"] = 0.0
    return with_top_p(replace(model.sampling, **given))


def _stop(fields: Fields) -> tuple[str, ...]:
    entries = fields.array("stop_sequences", limits.STOP_STRINGS) or []
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            raise invalid("stop_sequences must hold strings that are not empty", "stop_sequences")
        if len(entry.encode()) > limits.STOP_BYTES:
            message = f"a stop sequence has over {limits.STOP_BYTES} bytes"
            raise invalid(message, "stop_sequences")
    return tuple(dict.fromkeys(entries))


def _reasoning(fields: Fields, model: ServedModel) -> dict[str, bool | str]:
    """The thinking switch, and the effort where the model knows it: clients send one unasked."""
    switches = _thinking(fields)
    form = fields.object("output_config")
    effort = None if form is None else form.one_of("effort", EFFORTS)
    if effort not in model.efforts or switches.get("enable_thinking") is False:
        effort = None
    return variables(model, switches, effort, "output_config.effort")


def _thinking(fields: Fields) -> dict[str, bool | str]:
    """The thinking switch; a budget is taken and cannot be kept: answers end by max_tokens."""
    given = fields.object("thinking")
    if given is None:
        return {}
    kind = given.one_of("type", _THINKING)
    if kind is None:
        raise invalid("thinking.type is required", "thinking.type")
    given.integer("budget_tokens", 1, limits.MAX_TOKENS)
    return {"enable_thinking": kind != "disabled"}


def _system(fields: Fields) -> tuple[Message, ...]:
    value = fields.get("system")
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (Message("system", value),)
    blocks = fields.array("system", limits.CONTENT_PARTS) or []
    texts = []
    for index, entry in enumerate(blocks):
        block = fields.element("system", index, entry)
        if block.needed_text("type") != "text":
            raise invalid(f"{block.path('type')} must be text", block.path("type"))
        texts.append(block.needed_text("text"))
    return (Message("system", "\n".join(texts)),) if texts else ()


def _messages(fields: Fields) -> list[Message]:
    entries = fields.array("messages", limits.MESSAGES)
    if not entries:
        raise invalid("messages must hold at least one message", "messages")
    found: list[Message] = []
    for index, entry in enumerate(entries):
        message = fields.element("messages", index, entry)
        role = message.one_of("role", ("user", "assistant"))
        if role is None:
            raise invalid(f"{message.path('role')} is required", message.path("role"))
        found.extend(_user(message) if role == "user" else _assistant(message))
    if entries[-1].get("role") == "assistant":
        at = f"messages[{len(entries) - 1}]"
        raise invalid(f"{at}: an answer cannot be begun for the model", at)
    return found


def _blocks(fields: Fields) -> list[Fields]:
    """The content blocks; a bare string is one of type text."""
    value = fields.get("content")
    if isinstance(value, str):
        return [Fields({"type": "text", "text": value}, fields.path("content"))]
    entries = fields.array("content", limits.CONTENT_PARTS)
    if entries is None:
        raise invalid(f"{fields.path('content')} is required", fields.path("content"))
    return [fields.element("content", index, entry) for index, entry in enumerate(entries)]


def _user(fields: Fields) -> list[Message]:
    """Tool results are turns of their own; the text around them joins into one."""
    found: list[Message] = []
    texts: list[str] = []
    for block in _blocks(fields):
        kind = block.needed_text("type")
        if kind == "text":
            texts.append(block.needed_text("text"))
        elif kind == "tool_result":
            if texts:
                found.append(Message("user", "\n".join(texts)))
                texts = []
            found.append(_result(block))
        else:
            raise _unknown_block(block, kind)
    if texts or not found:
        found.append(Message("user", "\n".join(texts)))
    return found


def _result(fields: Fields) -> Message:
    call = fields.needed_text("tool_use_id", longest=limits.NAME_CHARS)
    fields.boolean("is_error")
    if fields.get("content") is None:
        return Message("tool", "", tool_call_id=call)
    texts = []
    for block in _blocks(fields):
        kind = block.needed_text("type")
        if kind != "text":
            raise _unknown_block(block, kind)
        texts.append(block.needed_text("text"))
    return Message("tool", "\n".join(texts), tool_call_id=call)


def _assistant(fields: Fields) -> list[Message]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in _blocks(fields):
        kind = block.needed_text("type")
        if kind == "text":
            texts.append(block.needed_text("text"))
        elif kind == "thinking":
            thoughts.append(block.needed_text("thinking"))
        elif kind == "tool_use":
            given = block.object("input")
            arguments = json.dumps({} if given is None else given.members, ensure_ascii=False)
            call = block.needed_text("id", longest=limits.NAME_CHARS)
            name = block.needed_text("name", longest=limits.NAME_CHARS)
            calls.append(ToolCall(call, name, arguments))
        elif kind != "redacted_thinking":
            raise _unknown_block(block, kind)
    reasoning = "\n\n".join(thoughts) if thoughts else None
    text = "".join(texts)
    return [Message("assistant", text, reasoning=reasoning, tool_calls=tuple(calls))]


def _unknown_block(block: Fields, kind: str) -> Exception:
    at = block.path("type")
    return invalid(f"{at}: {shorten(kind)} is not supported here", at, "unsupported_content_type")


def _offer(fields: Fields) -> Offer:
    entries = fields.array("tools", limits.TOOLS) or []
    tools: dict[str, Tool] = {}
    for index, entry in enumerate(entries):
        tool = _tool(fields.element("tools", index, entry))
        if tool.name in tools:
            raise invalid(f"tools[{index}]: a second tool {tool.name}", f"tools[{index}].name")
        tools[tool.name] = tool
    paths = tuple(f"tools[{index}].input_schema" for index in range(len(tools)))
    return _choice(fields, Offer(tuple(tools.values()), paths, callable=bool(tools)))


def _choice(fields: Fields, offer: Offer) -> Offer:
    choice = fields.object("tool_choice")
    if choice is None:
        return offer
    kind = choice.one_of("type", ("auto", "any", "tool", "none"))
    if kind is None:
        raise invalid("tool_choice.type is required", "tool_choice.type")
    if not offer.tools and kind != "none":
        raise invalid("tool_choice needs tools", "tool_choice")
    parallel = not choice.boolean("disable_parallel_tool_use")
    offer = offer._replace(callable=offer.callable and kind != "none", parallel=parallel)
    if kind == "any":
        return offer._replace(must_call=True)
    if kind == "tool":
        name = choice.needed_text("name")
        if name not in {tool.name for tool in offer.tools}:
            raise invalid("tool_choice.name is not among the tools", "tool_choice.name")
        return offer._replace(must_call=True, only=(name,))
    return offer


def _tool(fields: Fields) -> Tool:
    kind = fields.text("type") or "custom"
    if kind != "custom":
        at = fields.path("type")
        message = f"{at}: {shorten(kind)} is not served; tools are the client's own (custom)"
        raise invalid(message, at)
    name = fields.needed_text("name")
    if not TOOL_NAME.fullmatch(name):
        at = fields.path("name")
        raise invalid(f"{at} must be 1 to 64 letters, digits, underscores or hyphens", at)
    schema = fields.object("input_schema")
    if schema is None:
        raise invalid(f"{fields.path('input_schema')} is required", fields.path("input_schema"))
    shown: dict[str, Any] = {"name": name}
    if (description := fields.text("description")) is not None:
        shown["description"] = description
    return Tool(name, json.dumps({**shown, "parameters": schema.members}, ensure_ascii=False))
