"""A refusal names a field that the client sent, by the name that its API has for it, and a limit of
the server's the key that sets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpp.grammar.matcher import Grammars
from dgpp.grammar.vocabulary import load_grammars
from dgpp.sched.admission import context_refusal
from dgpp.sched.limits import EngineLimits
from dgpp.serve.errors import ApiError
from dgpp.serve.fronts import FRONTS
from dgpp.serve.models import model_object
from dgpp.serve.request import Kind
from dgpp.serve.submission import submission
from dgpp.text.codec import TextCodec
from dgpp.text.template import ChatTemplate
from dgpp.text.tokenizer import Tokenizer
from tests.unit.serve.test_tools import TEMPLATE

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"
USER = [{"role": "user", "content": "Hi"}]
LONG = [{"role": "user", "content": "Hi there, " * 4096}]
DEEP = {"type": "object", "properties": {"a": {"type": "integer", "contains": 1}}}
"""A schema with a keyword that means nothing to a grammar."""
SHOWN = {"name": "f", "parameters": DEEP, "strict": True}
FREE = {"type": "grammar", "syntax": "regex", "definition": "("}
NAMED = {"name": "f", "schema": DEEP, "strict": True}


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec(Tokenizer.load(TINY), ChatTemplate(TEMPLATE))


@pytest.fixture(scope="module")
def grammars(codec: TextCodec) -> Grammars:
    found = load_grammars(codec)
    assert found is not None
    return found


def stands(body: Any, path: str) -> bool:
    """Whether `path` leads to something in `body`."""
    for name, index in re.findall(r"([A-Za-z_]\w*)|\[(\d+)\]", path):
        try:
            body = body[int(index) if index else name]
        except (KeyError, IndexError, TypeError):
            return False
    return True


CASES: list[tuple[Kind, dict[str, Any], str]] = [
    ("chat", {"messages": USER, "max_tokens": 4096}, "max_tokens"),
    ("chat", {"messages": USER, "max_completion_tokens": 4096}, "max_completion_tokens"),
    ("completion", {"prompt": "Hi", "max_tokens": 4096}, "max_tokens"),
    ("completion", {"prompt": [1, 2], "max_tokens": 4096}, "max_tokens"),
    ("responses", {"input": "Hi", "max_output_tokens": 4096}, "max_output_tokens"),
    ("messages", {"messages": USER, "max_tokens": 4096}, "max_tokens"),
    # A prompt that leaves no room is at fault itself, whatever is asked for.
    ("chat", {"messages": LONG}, "messages"),
    ("chat", {"messages": LONG, "max_tokens": 1}, "messages"),
    ("completion", {"prompt": [7] * 4096, "max_tokens": 1}, "prompt"),
    ("completion", {"prompt": LONG[0]["content"]}, "prompt"),
    ("responses", {"input": LONG}, "input"),
    ("messages", {"messages": LONG, "max_tokens": 1}, "messages"),
    # Schemas and grammars, by the path that each form has.
    (
        "chat",
        {"messages": USER, "response_format": {"type": "json_schema", "json_schema": NAMED}},
        "response_format.json_schema.schema.properties.a.contains",
    ),
    (
        "responses",
        {"input": "Hi", "text": {"format": {"type": "json_schema", **NAMED}}},
        "text.format.schema.properties.a.contains",
    ),
    (
        "chat",
        {"messages": USER, "tools": [{"type": "function", "function": SHOWN}]},
        "tools[0].function.parameters",
    ),
    ("chat", {"messages": USER, "tools": [{"type": "function", **SHOWN}]}, "tools[0].parameters"),
    ("responses", {"input": "Hi", "tools": [{"type": "function", **SHOWN}]}, "tools[0].parameters"),
    (
        "messages",
        {
            "messages": USER,
            "max_tokens": 9,
            "tools": [{"name": "f", "input_schema": {"properties": {"a": {"enum": []}}}}],
            "tool_choice": {"type": "any"},
        },
        "tools[0].input_schema",
    ),
    (
        "chat",
        {"messages": USER, "tools": [{"type": "custom", "custom": {"name": "f", "format": FREE}}]},
        "tools[0].custom.format",
    ),
    (
        "responses",
        {"input": "Hi", "tools": [{"type": "custom", "name": "f", "format": FREE}]},
        "tools[0].format",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "param"), CASES)
def test_a_refusal_names_what_was_sent(model, codec, grammars, kind, fields, param):
    body = {"model": "org/name", **fields}
    request = FRONTS[kind].parse(json.dumps(body).encode(), "id", model)
    with pytest.raises(ApiError) as caught:
        submission(request, 1, codec, model, 0.0, lambda: grammars)
    refused = caught.value
    assert refused.status == 400
    assert (refused.param or "").startswith(param)
    assert stands(body, refused.param or "nowhere")
    # Anthropic's form has no place for it but the text.
    if kind == "messages" and refused.code != "context_length_exceeded":
        assert param in refused.message
    if refused.code == "context_length_exceeded":
        assert "the limit is 4096 (the model's own context)" in refused.message


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
REFERENCE = {"type": "tool_reference", "tool_name": "f"}
PARTS: list[tuple[Kind, dict[str, Any], str]] = [
    (
        "chat",
        {"messages": [*USER, {"role": "assistant", "tool_calls": [CALL]},
                      {"role": "tool", "tool_call_id": "c", "content": [REFERENCE]}]},
        "messages[2].content[0].type",
    ),
    (
        "chat",
        {"messages": [{"role": "user", "content": [REFERENCE]}]},
        "messages[0].content[0].type",
    ),
    (
        "messages",
        {"max_tokens": 9, "messages": [
            *USER, {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [REFERENCE]}]}]},
        "messages[2].content[0].content[0].type",
    ),
    (
        "messages",
        {"max_tokens": 9, "messages": [{"role": "user", "content": [REFERENCE]}]},
        "messages[0].content[0].type",
    ),
    (
        "responses",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [REFERENCE]}]},
        "input[0].output[0].type",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "param"), PARTS)
def test_a_part_that_only_some_templates_know_is_refused_by_name(model, kind, fields, param):
    """GLM's template would show the tool that `tool_reference` names."""
    body = {"model": "org/name", **fields}
    with pytest.raises(ApiError) as caught:
        FRONTS[kind].parse(json.dumps(body).encode(), "id", model)
    refused = caught.value
    assert (refused.status, refused.param) == (400, param)
    assert refused.code == "unsupported_content_type"
    assert refused.message.startswith(f"{param}: tool_reference ")
    assert stands(body, param)


@pytest.mark.parametrize(
    ("ceiling", "pool", "key", "told"),
    [
        (4096, 8192, "the model's own context", "position-ceiling"),
        # As engines state it: never above the pool.
        (2048, 2048, "engine.kv_capacity", "kv-pool"),
    ],
)
def test_the_key_that_limits_is_named(model, codec, ceiling, pool, key, told):
    served = msgspec.structs.replace(model, position_ceiling=ceiling, kv_pool_tokens=pool)
    assert model_object(served)["context"]["limited_by"] == told
    limit = min(ceiling, pool)
    for fields in ({"prompt": [7] * limit}, {"prompt": [7], "max_tokens": limit}):
        body = json.dumps({"model": "org/name", **fields}).encode()
        request = FRONTS["completion"].parse(body, "id", served)
        with pytest.raises(ApiError, match=re.escape(f"the limit is {limit} ({key})")):
            submission(request, 1, codec, served, 0.0)


def test_the_schedulers_own_refusal_names_the_key():
    limits = EngineLimits(
        slots=1, vocab_size=8, position_ceiling=32, block_tokens=16, blocks=2, chunk_align=16,
        chunk_limit=16, candidates=4,
    )  # fmt: skip
    assert "cache holds 32 tokens (engine.kv_capacity)" in (context_refusal(limits, 30, 3) or "")
    wide = msgspec.structs.replace(limits, blocks=8)
    assert "This model's context holds 32 tokens" in (context_refusal(wide, 30, 3) or "")
    assert context_refusal(limits, 30, 2) is None
