"""`timings`, against figures worked out by hand."""

from __future__ import annotations

import json

import pytest

from dgpp.serve.fronts import FRONTS
from dgpp.serve.request import GenerationRequest
from dgpp.serve.timings import Timings
from dgpp.text.delta import Delta, TextPart


def test_rates_leave_out_the_queue_the_cache_and_the_first_token():
    times = Timings()
    times.seat(1_000_000_000)
    times.seat(9_000_000_000)  # of a later choice
    times.commit(0, 0, 1_100_000_000)  # a prompt repeated: no token yet
    times.commit(0, 1, 1_500_000_000)
    times.commit(0, 3, 1_600_000_000)
    times.commit(0, 11, 2_000_000_000)
    assert times.object(prompt=120, cached=20, predicted=11) == {
        "cache_n": 20,
        "prompt_n": 100,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 5.0,
        "prompt_per_second": 200.0,
        "predicted_n": 11,
        "predicted_ms": 500.0,
        "predicted_per_token_ms": 50.0,
        "predicted_per_second": 20.0,
    }


def test_choices_count_together_and_nothing_is_divided_by_nothing():
    times = Timings()
    assert times.object(5, 0, 0) is None
    times.seat(10)
    assert times.object(5, 0, 0) is None
    times.commit(1, 2, 10)
    found = times.object(5, 5, 2)
    assert {name: found[name] for name in found if name.startswith(("prompt_per", "pred"))} == {
        "prompt_per_token_ms": 0.0,
        "prompt_per_second": 0.0,
        "predicted_n": 2,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
    }
    times.commit(0, 1, 20)
    times.commit(0, 6, 1_000_010)
    assert times.object(5, 5, 8)["predicted_per_second"] == pytest.approx(5 / 1e-3)


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("usage", [False, True])
def test_the_last_event_of_a_stream_and_a_whole_answer_have_them(kind, usage):
    asked = GenerationRequest(id="a", kind=kind, model="m", n=2, include_usage=usage)
    moves = [
        Delta("a", 0, 1, (TextPart("x"),)),
        Delta("a", 1, 1, (TextPart("y"),), finish="stop"),
        Delta("a", 0, 2, finish="length"),
    ]
    streamed = FRONTS[kind].streamed(asked, 0, lambda count: "p" * count)
    whole = FRONTS[kind].whole(asked, 0)
    out = b""
    for answer in (streamed, whole):
        answer.account.prompt(7)
        answer.account.times.seat(1)
        for at, delta in enumerate(moves, 2):
            answer.account.times.commit(delta.choice, delta.completion_tokens, at * 1000)
            out += answer.add(delta) or b""
    events = [json.loads(e[6:]) for e in out.split(b"\n\n") if e.startswith(b"data: {")]
    assert [("timings" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert bool(events[-1].get("usage")) == usage
    assert events[-1]["timings"] == json.loads(whole.json())["timings"]
    assert events[-1]["timings"]["predicted_n"] == 3
