"""An answer sent back as history renders to the very tokens that the model wrote (R4)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.sched.verdict import Finish
from dgpp.serve.chat import parse_chat
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses import WholeAnswer
from dgpp.serve.served import ServedModel
from dgpp.text.calls.values import ToolSchema
from dgpp.text.codec import TextCodec
from dgpp.text.output import OutputOptions, OutputStream
from dgpp.text.spelled import spelled

SERVED = ServedModel("m", 200_000, 4096, 4096)
SCHEMA = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "number"}}}
SCHEMA["properties"] |= {"o": {"type": "object"}, "l": {"type": "array"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
KEPT = {"clear_thinking": False, "preserve_thinking": True}
USER = {"role": "user", "content": "Go"}

words = st.lists(
    st.sampled_from(
        ["a", "é", "👩‍👩‍👧", "<", "x y", "\n", "&lt;", '"', "\\", "<b>", "<|im_end|>", "</"]
    ),
    max_size=5,
).map("".join)
trimmed = words.map(str.strip)
strings = st.one_of(
    words, st.sampled_from(["\nx\n", "", " ", "x</arg_value>y", "1", "null", "[1]"])
)
numbers = st.sampled_from(["1", "1.50", "-0", "1e3", "1E-7", "123456789012345678901", "0.1"])
objects = st.sampled_from(["{}", '{"a": 1.10}', '{"a":[1,{"b":null}]}', '{ "k":"\\u00e9<b>" }'])
lists = st.sampled_from(["[]", "[1,2]", "[1, 2]", '["a", "<tool_call>"]'])
arguments = st.fixed_dictionaries(
    {}, optional={"s": strings, "n": numbers, "o": objects, "l": lists}
)


def request_of(*messages: dict[str, Any]) -> GenerationRequest:
    body = {"model": "m", "messages": messages, "tools": TOOLS, "chat_template_kwargs": KEPT}
    return parse_chat(json.dumps(body).encode(), "r", SERVED)


def prompt(codec: TextCodec, request: GenerationRequest) -> list[int]:
    return codec.chat(request.messages, request.template_kwargs, tools=request.tools)


def written(
    codec: TextCodec, opened: bool, thought: str, text: str, calls: list[dict[str, str]]
) -> list[int]:
    """The tokens of a model that writes as its template does."""
    mark = partial(codec.tokenizer.guard.mark, sentinel="\ufdd0")
    dialect = codec.dialect
    assert dialect.thinking is not None
    assert dialect.calls is not None
    tag = "" if opened else "<think>"
    said = f"{tag}{mark(thought)}"
    if dialect.thinking.after:  # Qwen writes a line of its own
        said += "\n"
    said += f"</think>{dialect.thinking.after.decode()}{mark(text)}"
    if calls:
        gap = dialect.gap.decode()
        said += gap if text or not dialect.thinking.after else ""
        made = [
            (
                "f",
                {
                    key: mark(value) if key == "s" else spelled(json.loads(value), mark(value))
                    for key, value in one.items()
                },
            )
            for one in calls
        ]
        form = dialect.calls
        between = "\n" if form.name == "qwen" else ""
        said += form.block(made) if form.again else between.join(form.write(*one) for one in made)
    return codec.tokenizer.encode_rendered(said, "\ufdd0")


def answer(codec: TextCodec, request: GenerationRequest, ids: list[int], opened: bool) -> Any:
    options = OutputOptions(
        dialect=codec.dialect, reasoning=opened, tools={"f": ToolSchema("f", SCHEMA)}
    )
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, options)
    whole = WholeAnswer(request, 0)
    for token in ids:
        delta = stream.feed([token])
        if delta is not None:
            whole.add(delta)
    last = stream.feed([max(codec.stop_ids)], Finish.EOS)
    assert last is not None
    whole.add(last)
    return whole.object()["choices"][0]["message"]


@vendors.needed
@pytest.mark.parametrize("name", vendors.MODELS)
@settings(max_examples=12)
@given(trimmed.filter(bool), trimmed, st.lists(arguments, max_size=3))
def test_history_is_what_was_generated(name, thought, text, calls):
    codec = vendors.codec(name)
    asked = request_of(USER)
    before = prompt(codec, asked)
    opened = codec.opens_reasoning(before)
    ids = written(codec, opened, thought, text, calls)
    said = answer(codec, asked, ids, opened)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "r"}
        for call in said.get("tool_calls", [])
    ]
    after = prompt(codec, request_of(USER, said, *(results or [USER])))
    shown = codec.tokenizer.decode(after, skip_special=False)
    assert len(results) == len(calls)
    assert after[: len(before) + len(ids)] == before + ids, shown
