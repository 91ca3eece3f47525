"""Frames: however the bytes arrive they are the same messages; whatever is none is named."""

from __future__ import annotations

import contextlib
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.net.journal_errors import FrameError
from dgpp.net.journal_frames import (
    FROM_LEADER_BYTES,
    LAST_NUMBER,
    PROTOCOL,
    FrameReader,
    following,
    frame,
    header,
)
from dgpp.net.journal_messages import Applied, Beat, Ended, FromLeader, FromRank, Point, Tick
from dgpp.sample.params import SamplingParams
from dgpp.sched.request import Record, Submit, pack_ids

HEADER_BYTES = 12
MESSAGES = [Beat(), Applied(3), Ended(2, "engine of rank 2 was killed by signal 9", 0.5)]


def read_all(reader: FrameReader) -> list[object]:
    found = []
    while (message := reader.take()) is not None:
        found.append(message)
    return found


@given(st.lists(st.sampled_from(MESSAGES)), st.lists(st.integers(1, 40)))
def test_any_split_gives_the_same_messages(messages, sizes):
    data = b"".join(map(frame, messages))
    reader = FrameReader(FromRank, 4096)
    found = []
    for size in [*sizes, len(data)]:
        part, data = data[:size], data[size:]
        reader.feed(part)
        found += read_all(reader)
    reader.feed(data)
    found += read_all(reader)
    assert found == messages
    assert reader.unread == b""


def test_a_new_reader_takes_up_what_another_left_unread():
    data = frame(Applied(1)) + frame(Applied(2))
    first = FrameReader(FromRank, 4096)
    first.feed(data[:-3])
    assert first.take() == Applied(1)
    second = FrameReader(FromRank, 4096, first.unread)
    assert second.take() is None
    second.feed(data[-3:])
    assert second.take() == Applied(2)


@given(st.sampled_from(MESSAGES), st.data())
def test_a_flipped_bit_is_never_another_message(message, data):
    whole = bytearray(frame(message))
    at = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[at // 8] ^= 1 << at % 8
    reader = FrameReader(FromRank, 4096)
    reader.feed(bytes(whole))
    # A length that grew leaves the frame unfinished: then nothing is taken either.
    with contextlib.suppress(FrameError):
        assert reader.take() is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a journal frame"),
        (b"X", "not a journal frame"),
        (b"DGX", "not a journal frame"),
        (b"DGJ" + bytes([PROTOCOL + 1]), f"protocol {PROTOCOL + 1}, this rank speaks {PROTOCOL}"),
        (struct.pack(">3sBIII", b"DGJ", PROTOCOL, 101, 0, 0), "101 bytes, the limit is 100"),
        (struct.pack(">3sBIII", b"DGJ", PROTOCOL, 1, 0, 5) + b"\x01", "damaged"),
        (frame(Tick(0, 0, 0)), "none of the messages expected here"),
    ],
)
def test_what_is_no_frame_is_named(data, said):
    reader = FrameReader(FromRank, 100)
    reader.feed(data)
    with pytest.raises(FrameError, match=said):
        reader.take()


def test_deep_nesting_is_refused_like_any_garbage():
    body = b"\x82\xa4type\xa4Beat\xa1z" + b"\x91" * 50_000
    reader = FrameReader(FromRank, 1 << 20)
    reader.feed(header(body) + body)
    with pytest.raises(FrameError, match="none of the messages"):
        reader.take()


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(-2, 2),
    st.integers(0, 2**64 - 1),
)
def test_floats_and_seeds_arrive_bit_for_bit(temperature, penalty, seed):
    sampling = SamplingParams(temperature=temperature, presence_penalty=penalty)
    submit = Submit("r-0", pack_ids([1, 2]), 5, sampling, seed=seed)
    tick = Tick.of(Record(7, (submit,)), Point(3, 2**64 - 1, 0))
    reader = FrameReader(FromLeader, FROM_LEADER_BYTES)
    reader.feed(frame(tick))
    back = reader.take().record().submits[0]
    assert back.seed == seed
    for name in ("temperature", "presence_penalty"):
        ours, theirs = getattr(sampling, name), getattr(back.sampling, name)
        assert struct.pack("d", ours) == struct.pack("d", theirs) or math.isnan(ours)


def test_a_prompt_travels_once_whatever_n_is():
    prompt = pack_ids(range(1000))
    record = Record(0, tuple(Submit(f"r-{k}", prompt, 4) for k in range(16)), ("a-0",), ("b-0",))
    tick = Tick.of(record, Point(0, 0, 0))
    assert len(frame(tick)) < 2 * len(prompt)
    assert tick.record() == record


@pytest.mark.parametrize("numbers", [(), (1,), (-1,), (0, 0)])
def test_submits_without_their_prompts_are_refused(numbers):
    with pytest.raises(ValueError, match="prompts"):
        Tick(0, 0, 0, 0, (b"\0\0\0\0",), numbers, (Submit("r-0", b"", 1),)).record()


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((0, 0, 1, 3), "frame 3 came, 2 was due: lost or out of order"),
        ((1, 1), "frame 1 came, 2 was due"),
        ((2,), "frame 2 came, 1 was due"),
        ((1, 0), "frame 0 came, 2 was due"),
    ],
    ids=["lost", "doubled", "swapped", "joining"],
)
def test_frames_of_a_running_journal_come_as_they_are_numbered(numbers, said):
    reader = FrameReader(FromRank, 100, numbered=True)
    for number in numbers:
        reader.feed(frame(Applied(1), number))
    for _ in numbers[:-1]:
        assert reader.take() == Applied(1)
    with pytest.raises(FrameError, match=said):
        reader.take()


def test_numbers_begin_anew_at_one():
    assert [following(0), following(1), following(LAST_NUMBER)] == [1, 2, 1]
