"""One answer through every front end: how it ended and what it used, in each vendor's own words."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from dgpp.sched.verdict import Finish
from dgpp.serve.errors import ApiError
from dgpp.serve.fronts import FRONTS
from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import Delta
from dgpp.text.output import OutputOptions, OutputStream
from tests.unit.text.test_calls import BYTES, GLM, TOOLS, calls_text, dialect

CALL = calls_text(GLM, ("get_weather", {"city": "Köln", "days": 3}))


class Case(NamedTuple):
    """What is said and how it ends; `openai`, `anthropic`, `status` are what is told of that.

    `thought` of the tokens are reasoning, the closing tag included.
    """

    text: str
    finish: Finish
    openai: str
    anthropic: tuple[str, str | None]
    status: tuple[str, str | None]
    tokens: int
    stop: tuple[str, ...] = ()
    thought: int = 0


DONE, CUT = ("completed", None), ("incomplete", "max_output_tokens")
CASES = {
    "it ends by itself": Case("Hi", Finish.EOS, "stop", ("end_turn", None), DONE, 3),
    "it says nothing": Case("", Finish.EOS, "stop", ("end_turn", None), DONE, 1),
    "a stop string": Case(
        "Hi STOP on", Finish.LENGTH, "stop", ("stop_sequence", "STOP"), DONE, 7, ("no", "STOP")
    ),
    "a stop string in the last token": Case(
        "HiSTOP", Finish.LENGTH, "stop", ("stop_sequence", "STOP"), DONE, 6, ("STOP",)
    ),
    "the limit": Case("Hi", Finish.LENGTH, "length", ("max_tokens", None), CUT, 2),
    "no room for it": Case("Hi", Finish.POOL_EXHAUSTED, "length", ("max_tokens", None), CUT, 2),
    "a call": Case(
        CALL, Finish.EOS, "tool_calls", ("tool_use", None), DONE, len(CALL.encode()) + 1
    ),
    "a call cut off": Case(
        CALL[:-25], Finish.LENGTH, "length", ("max_tokens", None), CUT, len(CALL[:-25].encode())
    ),
    "a call and the limit": Case(
        CALL, Finish.LENGTH, "length", ("max_tokens", None), CUT, len(CALL.encode())
    ),
    "the limit amid the reasoning": Case(
        "hmm", Finish.LENGTH, "length", ("max_tokens", None), CUT, 3, thought=3
    ),
    "reasoning and nothing more": Case(
        "hmm</think>", Finish.EOS, "stop", ("end_turn", None), DONE, 12, thought=11
    ),
}


def deltas(case: Case, cut: int) -> list[Delta]:
    options = OutputOptions(case.stop, dialect(GLM), reasoning=case.thought > 0, tools=TOOLS)
    stream = OutputStream(BYTES, "id", 0, options)
    stream.cached_tokens = 4
    left = [*case.text.encode(), *([0] if case.finish is Finish.EOS else [])]
    found = []
    while not stream.finished:
        step, left = left[:cut], left[cut:]
        delta = stream.feed(step, Finish.NONE if left else case.finish)
        found += [] if delta is None else [delta]
    return found


def answer(kind: str, told: list[Delta]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the whole body, the data of every event of the stream)."""
    request = GenerationRequest("id", kind, "m", stream=True, include_usage=True)  # type: ignore[arg-type]
    front = FRONTS[kind]  # type: ignore[index]
    whole, streamed = front.whole(request, 0), front.streamed(request, 0, str)
    data = b""
    for responder in (whole, streamed):
        responder.account.prompt(10)
    for delta in told:
        whole.add(delta)
        data += streamed.add(delta)
    lines = [line for line in data.split(b"\n") if line.startswith(b"data: {")]
    return json.loads(whole.json()), [json.loads(line[6:]) for line in lines]


@pytest.mark.parametrize("cut", [1, 5, 999])
@pytest.mark.parametrize("name", CASES)
def test_how_it_ended_and_what_it_used(name: str, cut: int) -> None:
    case = CASES[name]
    told = deltas(case, cut)
    chat, chunks = answer("chat", told)
    assert chat["choices"][0]["finish_reason"] == case.openai
    ends = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert ends == [case.openai]
    assert chunks[-1]["usage"] == chat["usage"]
    counted = chat["usage"]
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (10, case.tokens)
    assert counted["total_tokens"] == 10 + case.tokens
    assert counted["prompt_tokens_details"]["cached_tokens"] == 4
    assert counted["completion_tokens_details"]["reasoning_tokens"] == case.thought

    message, events = answer("messages", told)
    assert (message["stop_reason"], message["stop_sequence"]) == case.anthropic
    assert [e["delta"] for e in events if e["type"] == "message_delta"] == [
        {"stop_reason": case.anthropic[0], "stop_sequence": case.anthropic[1]}
    ]
    # Here the input is counted without what was found in the cache.
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == 10
    assert message["usage"]["cache_read_input_tokens"] == 4
    assert message["usage"]["output_tokens"] == case.tokens
    assert events[-2]["usage"] == message["usage"]

    response, events = answer("responses", told)
    reason = (response["incomplete_details"] or {}).get("reason")
    assert (response["status"], reason) == case.status
    assert events[-1]["response"] == response
    assert events[-1]["type"] == f"response.{case.status[0]}"
    used = response["usage"]
    assert (used["input_tokens"], used["output_tokens"]) == (10, case.tokens)
    assert used["input_tokens_details"]["cached_tokens"] == 4
    assert used["output_tokens_details"]["reasoning_tokens"] == case.thought
    # Only what was open at the end can be incomplete.
    states = [item["status"] for item in response["output"]]
    assert set(states[:-1]) <= {"completed"}
    assert set(states[-1:]) <= {case.status[0], "completed"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (500, "api_error"),
    ],
)
def test_errors_have_the_kinds_that_anthropics_clients_know(status: int, kind: str) -> None:
    error = FRONTS["messages"].error(ApiError(status, "why"))
    assert error == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_a_call_that_was_cut_off_is_told_as_far_as_it_came() -> None:
    told = deltas(CASES["a call cut off"], 1)
    chat, _ = answer("chat", told)
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert call["function"]["arguments"].startswith('{"city": "Köln"')
    message, _ = answer("messages", told)
    assert message["content"][-1]["name"] == "get_weather"
    response, _ = answer("responses", told)
    assert response["output"][-1]["status"] == "incomplete"
    assert response["output"][-1]["arguments"] == call["function"]["arguments"]
