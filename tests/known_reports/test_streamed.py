"""Streams: characters, stop strings, usage chunks, choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dgpp.serve.chat import parse_chat
from dgpp.text.output import OutputOptions
from tests.known_reports.ledger import report
from tests.known_reports.told import dialect, told
from tests.unit.text.test_calls import GLM, QWEN, run

KINDS = pytest.mark.parametrize("kind", ["chat", "completion"])
FAMILY = "👩‍👩‍👧 你 é"


def said(chunks: list[dict[str, Any]], choice: int = 0) -> str:
    found = ""
    for chunk in chunks:
        for one in chunk["choices"]:
            if one["index"] == choice:
                found += one["text"] if "text" in one else one["delta"].get("content") or ""
    return found


@report(1, 2, 3)
@KINDS
def test_characters_come_whole_however_their_bytes_are_cut(thread: str, kind: str) -> None:
    for cuts in ([1], [2], [3], [2, 5, 1], []):
        chunks, whole = told(FAMILY.encode(), cuts=cuts, kind=kind)
        assert said(chunks) == FAMILY
        choice = whole["choices"][0]
        assert (choice["text"] if kind == "completion" else choice["message"]["content"]) == FAMILY
        assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


@report(5, 6, 7, 9)
@pytest.mark.parametrize(
    ("stop", "text", "cuts", "left"),
    [
        ("</end>", "hi</end>more", [2, 2, 3, 1], "hi"),
        ("own fox", "a br own fox", [4, 4, 4], "a br "),
        ("own fox", "a brown fox", [5, 2, 4], "a br"),
        ("<|im_end|>", "text<|im_end|>", [6, 4, 4], "text"),
        ("aab", "aaab", [1], "a"),
    ],
)
def test_no_part_of_a_stop_string_is_told(
    thread: str, stop: str, text: str, cuts: list[int], left: str
) -> None:
    for steps in (cuts, [1], []):
        chunks, whole = told(text.encode(), cuts=steps, options=OutputOptions(stop=(stop,)))
        assert said(chunks) == left
        assert whole["choices"][0]["message"]["content"] == left
        assert whole["choices"][0]["finish_reason"] == "stop"


@report(10, 11)
@pytest.mark.parametrize("form", [GLM, QWEN], ids=["glm", "qwen"])
def test_stop_strings_leave_the_end_of_the_reasoning_alone(thread: str, form) -> None:
    for cut in (1, 3, 99):
        answer = run("hm</think>hi </b>", form, [cut] * 20, reasoning=True, stop=("</",))
        assert (answer.reasoning, answer.text) == ("hm", "hi ")
        assert answer.finish == "stop"


@report(13, 14)
@pytest.mark.parametrize(
    ("options", "wanted"), [({}, False), ({"include_usage": True}, True), (None, False)]
)
def test_usage_comes_where_it_was_asked_for(model, thread: str, options, wanted: bool) -> None:
    body = {"model": "org/name", "messages": [{"role": "user", "content": "x"}], "stream": True}
    asked = parse_chat(json.dumps({**body, "stream_options": options}).encode(), "id", model)
    chunks, _ = told(b"abc", include_usage=asked.include_usage)
    with_usage = [chunk for chunk in chunks if chunk.get("usage") is not None]
    assert [chunk["choices"] for chunk in with_usage] == [[]] * wanted
    assert all(("usage" in chunk) == wanted for chunk in chunks)
    if wanted:
        assert chunks[-1] is with_usage[0]


@report(17, 18)
@KINDS
def test_every_chunk_has_a_finish_reason_and_it_is_null_to_the_last(thread: str, kind: str) -> None:
    chunks, _ = told(b"abcdef", cuts=[1], kind=kind)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]


@report(19, 20, 21)
@KINDS
def test_each_choice_ends_once_under_its_own_number(thread: str, kind: str) -> None:
    texts = [b"a", b"bbbbbbbb", b"cccc"]
    chunks, whole = told(*texts, cuts=[1], kind=kind)
    ends = [one["index"] for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert [said(chunks, choice).encode() for choice in range(3)] == texts
    assert [one["index"] for one in whole["choices"]] == [0, 1, 2]


@report(46)
@pytest.mark.parametrize("form", [GLM, QWEN], ids=["glm", "qwen"])
def test_a_step_across_the_end_of_the_reasoning(thread: str, form) -> None:
    """One step holds the last thought, the closing tag and the first of the answer."""
    options = OutputOptions(dialect=dialect(form), reasoning=True)
    for cuts in ([2, 11], [1], [13], []):
        _, whole = told(b"hmm</think>yes", cuts=cuts, options=options)
        message = whole["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hmm", "yes")
