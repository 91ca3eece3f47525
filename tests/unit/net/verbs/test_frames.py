"""Frames of the rendezvous: what goes in comes out, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks import frame_of

from dgpp.net.journal_errors import FrameError
from dgpp.net.verbs.frames import (
    MOST_PEERS,
    Geometry,
    Kind,
    LaneEnd,
    RankFrame,
    decode,
    decode_frames,
    decode_notice,
    encode,
    encode_notice,
)
from dgpp.net.verbs.library import MTUS, Address

u32 = st.integers(0, 2**32 - 1)
u24 = st.integers(0, 2**24 - 1)


@st.composite
def frames(draw):
    peers, lanes = draw(st.integers(1, MOST_PEERS)), draw(st.integers(1, 2))
    slots, sizes = st.integers(1, 2**32 - 1), [draw(u32) for _ in range(3)]
    devices = draw(st.sampled_from([0, 1, 2**32 - 1]))
    geometry = Geometry(draw(slots), sizes[0], draw(slots), sizes[1], devices, sizes[2])

    def lane_end():
        gid = draw(st.binary(min_size=16, max_size=16))
        pairs = [Address(draw(u24), draw(u24), gid) for _ in range(3 if devices else 2)]
        pairs += [None] * (3 - len(pairs))
        mtu, slab = draw(st.sampled_from(MTUS)), draw(st.integers(0, 2**64 - 1))
        return LaneEnd(tuple(pairs), draw(u32), mtu, slab)

    some = tuple(lane_end() for _ in range(lanes))
    ends = tuple(some if peer else tuple(reversed(some)) for peer in range(peers))
    return RankFrame(draw(st.integers(0, peers)), geometry, ends)


@settings(max_examples=50)
@given(frames())
def test_a_frame_comes_back_as_it_went(frame):
    data = encode(frame)
    assert len(data) == 40 + 56 * frame.lanes * len(frame.ends)
    assert decode(data) == frame


@settings(max_examples=150)
@given(st.data(), st.integers(1, 255))
@example(None, 255)
def test_every_flipped_byte_is_refused(data, flip):
    for whole, read in (
        (encode(frame_of(1, 3)), decode),
        (encode_notice(Kind.REFUSED, b"because"), decode_notice),
        (encode_notice(Kind.GO), decode_notice),
    ):
        places = range(len(whole)) if data is None else [data.draw(st.integers(0, len(whole) - 1))]
        for at in places:
            with pytest.raises(FrameError):
                read(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])


def test_every_cut_and_every_addition_is_refused():
    for whole, read in (
        (encode(frame_of(0, 2)), decode),
        (encode_notice(Kind.TABLE, b"abc"), decode_notice),
    ):
        for end in range(len(whole)):
            with pytest.raises(FrameError):
                read(whole[:end])
        with pytest.raises(FrameError, match="its head says"):
            read(whole + b"\0")


@given(st.binary(max_size=200))
def test_noise_is_a_named_error(noise):
    for read in (decode, decode_notice):
        with pytest.raises(FrameError):
            read(noise)
        with pytest.raises(FrameError):
            read(encode_notice(Kind.GO)[:4] + noise)


def test_a_frame_by_hand():
    """The layout itself, byte by byte: ranks of other releases read it."""
    gid = bytes(range(16))
    end = LaneEnd((Address(1, 2, gid), Address(3, 4, gid), Address(13, 14, gid)), 5, 4096, 6)
    data = encode(RankFrame(1, Geometry(7, 8, 9, 10, 11, 12), ((end,),)))
    assert data[:36].hex(" ") == (
        "44 47 42 53 02 01 01 00 01 00 00 00 07 00 00 00 08 00 00 00 09 00 00 00 0a 00 00 00 "
        "0b 00 00 00 0c 00 00 00"
    )
    assert data[40:].hex(" ") == (
        "01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00 0d 00 00 00 0e 00 00 00 "
        "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f "
        "05 00 00 00 00 10 00 00 06 00 00 00 00 00 00 00"
    )


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(0, 0, "not a frame"), (4, 1, "bus version 1"), (5, 3, "3 lanes"), (6, 16, "16 peers")],
)
def test_what_is_wrong_with_a_head_is_named(at, value, said):
    data = bytearray(encode(frame_of(0, 2)))
    data[at] = value
    with pytest.raises(FrameError, match=said):
        decode(bytes(data))


def test_a_frame_without_slots_that_every_world_needs_is_refused():
    for geometry in (Geometry(0, 64, 2, 256), Geometry(4, 64, 0, 256)):
        with pytest.raises(FrameError, match="without latency or bulk slots"):
            decode(encode(frame_of(0, 2, geometry=geometry)))


def test_a_table_has_its_ranks_in_order():
    first, second = (encode(frame_of(rank, 2)) for rank in range(2))
    assert decode_frames(first + second) == (frame_of(0, 2), frame_of(1, 2))
    with pytest.raises(FrameError, match="not in order"):
        decode_frames(second + first)


def test_the_lanes_towards_a_peer_skip_the_rank_itself():
    frame = frame_of(1, 4)
    assert [frame.towards(peer)[0].pairs[0].number for peer in (0, 2, 3)] == [0, 100, 200]
