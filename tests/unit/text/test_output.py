"""Chunking invariance, no withdrawn text, byte safety: over the tiny tokenizer."""

from __future__ import annotations

import dataclasses
import time

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from dgpp.sched.verdict import Finish
from dgpp.text.codec import TextCodec
from dgpp.text.delta import Delta, RowLogprobs, TokenLogprob
from dgpp.text.output import OutputOptions, OutputStream

EOT = 474
ids = st.lists(st.integers(0, 478), max_size=24)
letters = st.sampled_from(["a", "b", " ", "é", "🙂", "<", "</end>", "own fox", "ing", "\ufffd"])
stops = st.lists(st.lists(letters, min_size=1, max_size=3).map("".join), max_size=4)
ends = st.sampled_from([Finish.EOS, Finish.LENGTH, Finish.CANCELLED, Finish.POOL_EXHAUSTED])


@dataclasses.dataclass
class Answer:
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finishes: tuple[str, ...] = ()
    tokens: int = 0
    stopped: bool = False

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.logprobs += delta.logprobs
        self.finishes += (delta.finish,) if delta.finish else ()
        self.tokens = delta.completion_tokens


def rows_of(tokens: list[int]) -> list[RowLogprobs]:
    return [RowLogprobs(-i / 8, (t, 65), (-i / 8, -9.0)) for i, t in enumerate(tokens)]


def run(
    codec: TextCodec, tokens: list[int], finish: Finish, stop: list[str], cuts: list[int]
) -> Answer:
    """Feed `tokens` in steps of the given sizes, what is left in one last step."""
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, stop)
    answer, rows, at = Answer(), rows_of(tokens), 0
    bounds = []
    for size in cuts:
        if at + size >= len(tokens):
            break
        bounds.append((at, at + size))
        at += size
    for low, high in [*bounds, (at, len(tokens))]:
        end = finish if high == len(tokens) else Finish.NONE
        delta = stream.feed(tokens[low:high], end, rows[low:high])
        if delta is not None:
            answer.add(delta)
    answer.stopped = stream.stop_found
    assert stream.finished
    assert stream.feed([65], Finish.NONE) is None
    return answer


@given(ids, ends, stops, st.lists(st.integers(1, 8), max_size=24))
def test_any_split_gives_the_same_answer(
    codec: TextCodec, tokens: list[int], finish: Finish, stop: list[str], cuts: list[int]
) -> None:
    if finish is Finish.EOS:
        tokens = [*tokens, EOT]
    whole = run(codec, tokens, finish, stop, [])
    assert run(codec, tokens, finish, stop, cuts) == whole
    assert run(codec, tokens, finish, stop, [1] * len(tokens)) == whole
    assert len(whole.finishes) == 1


@given(ids, st.lists(st.integers(1, 8), max_size=24))
def test_without_stops_the_text_is_the_librarys_decode(
    codec: TextCodec, library: tokenizers.Tokenizer, tokens: list[int], cuts: list[int]
) -> None:
    answer = run(codec, tokens, Finish.LENGTH, [], cuts)
    assert answer.text == library.decode(tokens, skip_special_tokens=True)
    assert answer.tokens == len(tokens)
    assert answer.finishes == ("length",)


@given(st.lists(letters, min_size=1, max_size=8).map("".join), stops, st.lists(st.integers(1, 8)))
def test_stop_cuts_text_logprobs_and_usage(
    codec: TextCodec, text: str, stop: list[str], cuts: list[int]
) -> None:
    tokens = codec.tokenizer.encode(text)
    answer = run(codec, tokens, Finish.LENGTH, stop, cuts)
    complete = [
        (end, -len(s)) for s in stop for end in range(len(text) + 1) if text[:end].endswith(s)
    ]
    assert answer.stopped == bool(complete)
    assert b"".join(entry.raw for entry in answer.logprobs) == answer.text.encode()
    if not complete:
        assert (answer.text, answer.tokens) == (text, len(tokens))
        return
    end, negative = min(complete)
    assert answer.text == text[: end + negative]
    assert answer.finishes == ("stop",)
    reached = codec.tokenizer.bytes
    size, count = 0, 0
    while size < len(text[:end].encode()):
        size += len(reached.raw(tokens[count]))
        count += 1
    assert answer.tokens == count


def feed_each(codec: TextCodec, tokens: list[int], stop: list[str] = []) -> list[str]:  # noqa: B006
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, stop)
    deltas = [stream.feed([token]) for token in tokens]
    return [delta.text if delta else "" for delta in deltas]


def byte_ids(codec: TextCodec, raw: bytes) -> list[int]:
    single = {codec.tokenizer.bytes.raw(token): token for token in range(256)}
    return [single[bytes([byte])] for byte in raw]


def test_split_characters_wait_mlc_llm_1142(codec: TextCodec) -> None:
    family = "👩‍👩‍👧"
    pieces = feed_each(codec, byte_ids(codec, family.encode()))
    assert [p for p in pieces if p] == list(family)
    assert feed_each(codec, byte_ids(codec, b"\xe4\xbd\xa0")) == ["", "", "你"]


def test_partial_stop_is_never_shown_vllm_3574(codec: TextCodec) -> None:
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, ["</end>"])
    ends = byte_ids(codec, b"hi</end>")
    shown = "".join(d.text for token in ends if (d := stream.feed([token])))
    assert shown == "hi"
    assert stream.stop_found
    assert stream.completion_tokens == len(ends)


def test_unfinished_character_is_replaced_at_the_end(codec: TextCodec) -> None:
    stream = OutputStream(codec.tokenizer.bytes, "r", 3)
    first = stream.feed(byte_ids(codec, b"a\xf0\x9f"))
    last = stream.feed([], Finish.CANCELLED)
    assert first == Delta("r", 3, 3, first.parts, (), None)
    assert first.text == "a"
    assert (last.text, last.finish) == ("\ufffd", "stop")


def test_end_token_is_hidden_and_counted(codec: TextCodec) -> None:
    """Also one that is not special, as a configuration may name any."""
    for end in (EOT, 475):
        stream = OutputStream(codec.tokenizer.bytes, "r", 0)
        delta = stream.feed([39, end], Finish.EOS, rows_of([39, end]))
        assert (delta.text, delta.completion_tokens, delta.finish) == ("H", 2, "stop")
        assert [entry.token for entry in delta.logprobs] == ["H"]


@given(
    ids, st.lists(st.integers(0, 478), min_size=1, max_size=12), st.booleans(),
    st.sampled_from([Finish.EOS, Finish.LENGTH]), stops, st.lists(st.integers(1, 8), max_size=24),
    st.lists(st.integers(1, 5), max_size=12),
)  # fmt: skip
def test_a_repeated_prompt_comes_first_however_it_is_cut(
    codec: TextCodec,
    tokens: list[int],
    prompt: list[int],
    scored: bool,
    finish: Finish,
    stop: list[str],
    cuts: list[int],
    reads: list[int],
) -> None:
    if finish is Finish.EOS:
        tokens = [*tokens, EOT]
    plain = run(codec, tokens, finish, stop, cuts)
    options = OutputOptions(tuple(stop), repeats_prompt=True, scored=scored)
    stream = OutputStream(codec.tokenizer.bytes, "r", 0, options, prompt)
    answer, rows = Answer(), rows_of(prompt)[1:]
    while scored and rows:
        size = reads.pop() if reads else len(rows)
        answer.add(stream.read(rows[:size]))
        rows = rows[size:]
    told = rows_of(tokens)
    for at in range(0, len(tokens), 2):
        end = finish if at + 2 >= len(tokens) else Finish.NONE
        if (delta := stream.feed(tokens[at : at + 2], end, told[at : at + 2])) is not None:
            answer.add(delta)
    if not tokens:
        answer.add(stream.feed([], finish))
    assert answer.tokens == plain.tokens
    assert answer.finishes == plain.finishes
    raw = codec.tokenizer.bytes.raw
    spoken = b"".join(map(raw, prompt)) + b"".join(map(raw, tokens))
    if not stop:
        assert answer.text == spoken.decode("utf-8", "replace")
    if not scored:
        return
    # One entry for every token of both, in order, each with its own number; none of the first.
    assert len(answer.logprobs) == len(prompt) + plain.tokens
    numbers = [-i / 8 for i in range(1, len(prompt))] + [-i / 8 for i in range(plain.tokens)]
    assert [entry.logprob for entry in answer.logprobs[1:]] == numbers
    shown = b"".join(entry.raw for entry in answer.logprobs)
    assert shown.decode("utf-8", "replace") == answer.text


@pytest.mark.bench
def test_plain_text_cost_per_token(codec: TextCodec) -> None:
    tokens = codec.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 200)
    for stop in ([], ["</end>", "\n\nUser:"]):
        stream = OutputStream(codec.tokenizer.bytes, "r", 0, stop)
        start = time.perf_counter()
        for token in tokens:
            stream.feed((token,))
        spent = time.perf_counter() - start
        print(f"{len(stop)} stops: {spent / len(tokens) * 1e6:.2f} us a token")
