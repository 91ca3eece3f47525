"""One answer in three forms (events, whole, what the OpenAI client reads of either)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from dgpp.sample.params import SamplingParams
from dgpp.serve.errors import ApiError, engine_failed, overloaded, too_large
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses import WholeAnswer, response_id
from dgpp.serve.sse import DONE, error_events, event_stream
from dgpp.text.delta import Delta, TextPart, TokenLogprob, TopLogprob

KINDS = pytest.mark.parametrize("kind", ["chat", "completion"])


def request(kind: str = "chat", **fields: Any) -> GenerationRequest:
    return GenerationRequest(id=f"{kind}-1", kind=kind, model="m", stream=True, **fields)


def delta(
    choice: int, count: int, text: str = "", finish: str | None = None, logprobs: Any = ()
) -> Delta:
    return Delta("x", choice, count, (TextPart(text),) if text else (), logprobs, finish)


def events(data: bytes) -> list[Any]:
    found = []
    for event in data.split(b"\n\n")[:-1]:
        assert event.startswith(b"data: ")
        found.append(event[6:] if event == DONE.strip() else json.loads(event[6:]))
    return found


def entry(text: str, logprob: float) -> TokenLogprob:
    raw = text.encode()
    return TokenLogprob(
        text, raw, logprob, (TopLogprob(text, raw, logprob), TopLogprob("x", b"x", float("-inf")))
    )


def test_first_event_brings_the_role_and_only_before_output() -> None:
    stream = event_stream(request(), 17)
    first = events(stream.events(delta(0, 1, 'a"\n🙂')))
    head = {"id": "chat-1", "object": "chat.completion.chunk", "created": 17, "model": "m"}
    head |= {"system_fingerprint": None}
    opening = {"role": "assistant", "content": "", "refusal": None}
    bare = {"index": 0, "logprobs": None, "finish_reason": None}
    assert first == [
        {**head, "choices": [{**bare, "delta": opening}]},
        {**head, "choices": [{**bare, "delta": {"content": 'a"\n🙂'}}]},
    ]
    last = events(stream.events(delta(0, 2, "", "stop")) + stream.end())
    final = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert last == [{**head, "choices": [final]}, b"[DONE]"]


@KINDS
def test_usage_is_one_last_event_and_null_before_vllm_7262(kind: str) -> None:
    stream = event_stream(request(kind, include_usage=True, n=2), 0)
    stream.account.prompt(10)
    # The second choice found what the first had read: the prompt is counted once all the same.
    first = structs.replace(delta(0, 3, "a", "length"), cached_tokens=4, decoded_tokens=1)
    data = stream.events(structs.replace(delta(1, 1, "b"), cached_tokens=9)) + stream.events(first)
    assert not stream.account.done
    data += stream.events(delta(1, 5, "", "stop")) + stream.end()
    assert stream.account.done
    *ordinary, usage, done = events(data)
    assert all(event["usage"] is None and event["choices"] for event in ordinary)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 8,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4, "cached_decoded_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert done == b"[DONE]"


moves = st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), max_size=20)


@KINDS
@given(moves=moves, logprobs=st.booleans())
def test_stream_and_whole_answer_agree(kind: str, moves: list, logprobs: bool) -> None:
    asked = request(
        kind, n=3, include_usage=True, sampling=SamplingParams(logprobs=1 if logprobs else -1)
    )
    stream, whole = event_stream(asked, 5), WholeAnswer(asked, 5)
    counts, data = [0, 0, 0], b""
    deltas = []
    for choice, text in moves:
        counts[choice] += 1
        entries = (entry(text, -0.5),) if logprobs and text else ()
        deltas.append(delta(choice, counts[choice], text, None, entries))
    deltas += [delta(choice, counts[choice] + 1, "", "stop") for choice in range(3)]
    for one in [*deltas, delta(0, 99, "late", "length")]:
        data += stream.events(one)
        whole.add(one)
    *chunks, usage, _ = events(data + stream.end())
    answer = json.loads(whole.json())
    assert usage["usage"] == answer["usage"]
    answer_type = ChatCompletion if kind == "chat" else Completion
    answer_type.model_validate(answer)
    for choice in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice]
        reasons = [c["finish_reason"] for c in mine if c["finish_reason"] is not None]
        assert reasons == ["stop"] == [answer["choices"][choice]["finish_reason"]]
        read = (lambda c: c["delta"].get("content", "")) if kind == "chat" else lambda c: c["text"]
        form = answer["choices"][choice]
        text = form["message"]["content"] if kind == "chat" else form["text"]
        assert "".join(map(read, mine)) == text
        parts = [c["logprobs"] for c in mine if c["logprobs"]]
        for key in ("content",) if kind == "chat" else ("tokens", "token_logprobs", "text_offset"):
            joined = [item for part in parts for item in part[key]]
            assert joined == (form["logprobs"][key] if logprobs else [])
    for chunk in chunks if kind == "chat" else ():
        ChatCompletionChunk.model_validate(chunk)


def test_chat_logprobs_form() -> None:
    whole = WholeAnswer(request(sampling=SamplingParams(logprobs=1)), 0)
    whole.add(delta(0, 1, "é", "stop", (entry("é", -0.5),)))
    assert whole.object()["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "é",
                "logprob": -0.5,
                "bytes": [195, 169],
                "top_logprobs": [
                    {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            }
        ],
        "refusal": None,
    }


def test_legacy_logprobs_count_characters_and_hold_the_chosen_token() -> None:
    whole = WholeAnswer(request("completion", sampling=SamplingParams(logprobs=1)), 0)
    pieces = [TokenLogprob("\ufffd", b"\xc3", -1.0), TokenLogprob("\ufffd", b"\xa9", -2.0)]
    whole.add(delta(0, 3, "éb", "length", (*pieces, TokenLogprob("b", b"b", -3.0))))
    assert whole.object()["choices"][0]["logprobs"] == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-1.0, -2.0, -3.0],
        "top_logprobs": [{"bytes:\\xc3": -1.0}, {"bytes:\\xa9": -2.0}, {"b": -3.0}],
        "text_offset": [0, 1, 1],
    }


def test_legacy_alternatives_are_the_best_and_the_token_itself() -> None:
    asked = request("completion", sampling=SamplingParams(logprobs=3), repeats_prompt=True)
    stream = event_stream(asked, 0)

    def logprobs(*entries: TokenLogprob) -> dict[str, Any]:
        (event,) = events(stream.events(delta(0, 0, "x", None, entries)))
        found: dict[str, Any] = event["choices"][0]["logprobs"]
        return found

    best = (TopLogprob("p", b"p", -0.5), TopLogprob("q", b"q", -1.0), TopLogprob("r", b"r", -2.0))
    # Of the prompt's first token nothing can be said.
    first = logprobs(TokenLogprob("a", b"a", 0.0), TokenLogprob("r", b"r", -2.0, best))
    assert first["token_logprobs"] == [None, -2.0]
    assert first["top_logprobs"] == [None, {"p": -0.5, "q": -1.0, "r": -2.0}]
    # A token that nobody can see has a name and takes no place; a better id of the same text does
    # not become worse by the one that was taken.
    twice = (TopLogprob("p", b"p", -0.5), TopLogprob("p", b"p", -0.75))
    second = logprobs(
        TokenLogprob("<end>", b"", -1.0, best[:2]), TokenLogprob("p", b"p", -0.75, twice)
    )
    assert second["top_logprobs"] == [{"p": -0.5, "q": -1.0, "<end>": -1.0}, {"p": -0.5}]
    assert second["text_offset"] == [2, 2]


def test_logprobs_without_text_come_in_an_empty_delta() -> None:
    stream = event_stream(request(), 0)
    stream.events(delta(0, 1, "a"))
    (event,) = events(stream.events(delta(0, 2, "", None, (entry("b", -1.0),))))
    assert event["choices"][0]["delta"] == {}
    assert event["choices"][0]["logprobs"]["content"][0]["token"] == "b"


@KINDS
@given(text=st.text(max_size=200))
def test_obfuscation_fills_buckets(kind: str, text: str) -> None:
    stream = event_stream(request(kind, include_obfuscation=True), 0, lambda size: "x" * size)
    data = stream.events(delta(0, 1, text, "stop"))
    for piece, event in zip(data.split(b"\n\n"), events(data), strict=False):
        assert len(piece + b"\n\n") % 128 == 0
        assert len(event["obfuscation"]) >= 16
    assert "obfuscation" not in events(stream.end())


def test_extras_and_ids() -> None:
    asked = request(metadata={"k": "v"}, service_tier="default")
    whole = WholeAnswer(asked, 3)
    whole.add(delta(0, 1, "", "stop"))
    found = whole.object()
    assert (found["metadata"], found["service_tier"]) == ({"k": "v"}, "default")
    assert found["choices"][0]["message"] == {"role": "assistant", "content": "", "refusal": None}
    (role, _) = events(event_stream(asked, 3).events(delta(0, 1, "", "stop")))
    assert role["service_tier"] == "default"
    assert response_id("chat", 255) == "chatcmpl-00000000000000ff"
    assert response_id("completion", 2**64 - 1) == "cmpl-ffffffffffffffff"


def test_error_objects() -> None:
    failed = engine_failed("sampler 0 died")
    assert events(error_events(failed)) == [
        {
            "error": {
                "message": "The engine has failed: sampler 0 died",
                "type": "server_error",
                "param": None,
                "code": "engine_failure",
            }
        },
        b"[DONE]",
    ]
    assert (overloaded().status, overloaded().retry_after) == (503, 1)
    large = too_large(9, 8, "http.max_body_bytes")
    assert (large.status, large.code) == (413, "request_too_large")
    assert large.message == "The request body has 9 bytes, the limit is 8 (http.max_body_bytes)"
    assert ApiError(404, "x").type == "invalid_request_error"


@pytest.mark.bench
def test_cost_per_event() -> None:
    for asked in (request(), request("completion"), request(include_usage=True)):
        stream = event_stream(asked, 0)
        deltas = [delta(0, i, " word") for i in range(5000)]
        start = time.perf_counter()
        for one in deltas:
            stream.events(one)
        print(f"{asked.kind}: {(time.perf_counter() - start) / len(deltas) * 1e6:.2f} us an event")
