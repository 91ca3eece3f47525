"""Tool calls as they stream, and conversations that hold calls and reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dgpp.sched.request import unpack_ids
from dgpp.serve.chat import parse_chat
from dgpp.serve.served import ServedModel
from dgpp.serve.submission import submission
from dgpp.text.codec import TextCodec
from dgpp.text.output import OutputOptions
from dgpp.text.template import ChatTemplate
from tests.known_reports.ledger import report
from tests.known_reports.told import TOOLS, dialect, told
from tests.unit.serve.test_tools import TEMPLATE
from tests.unit.serve.test_tools import codec as codec
from tests.unit.text.test_calls import DSML_V4, DSML_V41, FORMATS, GLM, calls_text, named, run

EVERY = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])
WEATHER = ("get_weather", {"city": "Köln", "days": 3})


@report(22, 23)
def test_a_call_without_arguments_has_an_empty_object(thread: str) -> None:
    for text in ("<tool_call>now</tool_call>", "<tool_call>now\n</tool_call>"):
        for cuts in ([1], [5], []):
            options = OutputOptions(dialect=dialect(GLM), tools=TOOLS)
            chunks, whole = told(text.encode(), cuts=cuts, options=options)
            (call,) = whole["choices"][0]["message"]["tool_calls"]
            assert call["function"] == {"name": "now", "arguments": "{}"}
            pieces = deltas(chunks)
            assert "".join(p["function"].get("arguments", "") for p in pieces) == "{}"
            assert whole["choices"][0]["finish_reason"] == "tool_calls"


@report(25)
@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>get_weather<arg_value>Köln</arg_value></tool_call>",
        "<tool_call>get_weather<arg_key>city<arg_value>x</arg_value></tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>get_weather</arg_key></tool_call>",
        "<tool_call>get_weather<arg_key>city</arg_key></tool_call>",
    ],
)
def test_a_malformed_block_swallows_nothing_behind_it(thread: str, block: str) -> None:
    text = f"before {block} after"
    whole = run(text, GLM)
    assert run(text, GLM, [1] * 200) == whole
    assert whole.text.startswith("before")
    assert whole.text.endswith(" after")
    for call in whole.calls:
        assert isinstance(json.loads(call.arguments), dict)


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        piece
        for chunk in chunks
        for one in chunk["choices"]
        for piece in one["delta"].get("tool_calls", ())
    ]


@report(26, 32)
@EVERY
def test_names_and_ids_are_told_once_and_whole(thread: str, form) -> None:
    """However the name is cut, and with an index of its own for each of two calls."""
    options = OutputOptions(dialect=dialect(form), tools=TOOLS)
    text = calls_text(form, ("write_file", {"path": "a", "content": "b"}), WEATHER).encode()
    for cuts in ([1], [7], [2, 30], []):
        pieces = deltas(told(text, cuts=cuts, options=options)[0])
        openings = [piece for piece in pieces if "id" in piece]
        assert [piece["index"] for piece in openings] == [0, 1]
        assert [piece["function"]["name"] for piece in openings] == ["write_file", "get_weather"]
        assert len({piece["id"] for piece in openings}) == 2
        assert [piece["index"] for piece in pieces] == sorted(piece["index"] for piece in pieces)
        assert all("name" not in piece["function"] for piece in pieces if piece not in openings)


@report(35)
@pytest.mark.parametrize("form", [DSML_V4, DSML_V41], ids=["v4", "v4.1"])
def test_markers_of_full_width_bars_leak_nowhere(thread: str, form) -> None:
    text = "Look. " + calls_text(form, WEATHER, ("now", {}))
    for cut in range(1, 40):
        answer = run(text, form, [cut] * 400)
        assert named(answer) == [WEATHER, ("now", {})]
        assert answer.text.strip() == "Look."


@report(45)
@pytest.mark.parametrize(
    ("switch", "opens"), [({}, True), ({"enable_thinking": True}, True),
                          ({"enable_thinking": False}, False)],
)  # fmt: skip
@pytest.mark.parametrize("by_default", [True, False])
def test_the_prompt_says_whether_an_answer_begins_with_reasoning(
    model: ServedModel, codec: TextCodec, thread: str, switch: dict[str, bool], opens: bool,
    by_default: bool,
) -> None:  # fmt: skip
    asks = "enable_thinking is not defined or " if by_default else ""
    turn = "[assistant]<think>"
    closed = turn + "{% if not (" + asks + "enable_thinking) %}</think>{% endif %}"
    assert TEMPLATE.count(turn) == 1
    thinking = TextCodec(codec.tokenizer, ChatTemplate(TEMPLATE.replace(turn, closed)))
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}]}
    body |= {"chat_template_kwargs": switch} if switch else {}
    asked = parse_chat(json.dumps(body).encode(), "id", model)
    found = submission(asked, 1, thinking, model, 0.0)
    assert found.output.reasoning == (opens if switch else by_default)


def rendered(model: ServedModel, codec: TextCodec, messages: list[dict[str, Any]]) -> str:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]
    body = json.dumps({"model": "org/name", "messages": messages, "tools": tools})
    found = submission(parse_chat(body.encode(), "id", model), 1, codec, model, 0.0)
    text = codec.tokenizer.decode(unpack_ids(found.prompts[0]).tolist(), skip_special=False)
    return text[text.index("[user]") :]


def history(arguments: Any, result: Any, **said: Any) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    return [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [call], **said},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]


CALLED = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln</arg_value></tool_call>"


@report(81, 83)
def test_arguments_and_results_reach_the_template_as_it_wants_them(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    parts = [{"type": "text", "text": "dr"}, {"type": "text", "text": "y"}]
    for arguments in ('{"city": "Köln"}', {"city": "Köln"}):
        for result in ("dry", parts):
            found = rendered(model, codec, history(arguments, result))
            assert found.startswith(f"[user]Rain?[assistant]{CALLED}[tool]")
            assert found[found.index("[tool]") :].replace("\n", "").startswith("[tool]dry")


@report(47)
def test_reasoning_of_earlier_turns_may_come_back_or_not(
    model: ServedModel, codec: TextCodec, thread: str
) -> None:
    arguments = '{"city": "Köln"}'
    without = rendered(model, codec, history(arguments, "dry"))
    assert "<think>hm" not in without
    with_it = rendered(model, codec, history(arguments, "dry", reasoning_content="hm"))
    assert "[assistant]<think>hm</think>" in with_it
