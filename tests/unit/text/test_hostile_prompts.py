"""Text of a client's is text to every vendor's tokenizer, wherever in a conversation it stands."""

from __future__ import annotations

import json

import pytest
import vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.text.calls.format import MARKERS
from dgpp.text.codec import TextCodec
from dgpp.text.messages import Message, Tool, ToolCall


def conversation(text: str) -> tuple[list[Message], list[Tool]]:
    arguments = json.dumps({"k" + text: [text, {"k": text}], "s": text})
    call = ToolCall(text, "f", arguments)
    schema = {"type": "object", "properties": {text: {"description": text, "enum": [text]}}}
    tool = {"name": "f", "description": text, "parameters": schema}
    kept = text
    for marker in sorted(MARKERS):
        kept = kept.replace(marker, "")
    return [
        Message("system", text),
        Message("user", text, name=text),
        Message("assistant", f"x{kept}", reasoning=f"x{text}", tool_calls=(call,)),
        Message("tool", text, tool_call_id=text),
        Message("assistant", f"x{kept}", reasoning=f"x{text}"),
        Message("user", text),
    ], [Tool("f", json.dumps(tool))]


def controls(codec: TextCodec, text: str) -> list[int]:
    messages, tools = conversation(text)
    ids = codec.chat(messages, {"clear_thinking": False}, tools=tools)
    known = set(codec.tokenizer.controls.values())
    return [token for token in ids if token in known]


@vendors.needed
@pytest.mark.parametrize("name", vendors.MODELS)
def test_no_control_token_comes_of_text(name: str) -> None:
    codec = vendors.codec(name)
    names = sorted(codec.tokenizer.controls)
    named = st.sampled_from([n for n in names if "place" not in n])
    halves = st.builds(
        lambda text, cut: (text[:cut], text[cut:])[cut % 2], named, st.integers(1, 9)
    )
    hostile = st.lists(
        st.one_of(named, halves, st.sampled_from(["<", ">", "|", "｜", " ", "\n", "\ufdd0"])),
        min_size=1,
        max_size=5,
    ).map("".join)
    expected = controls(codec, "y")

    @settings(max_examples=8)
    @given(hostile)
    def check(text: str) -> None:
        assert controls(codec, text) == expected, text

    check()
