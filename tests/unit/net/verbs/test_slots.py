"""Slots: filled and given back in a ring, announced by doorbells, proved by a hash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import SMALL

from dgpp.net.verbs.cells import CELL_BYTES, Cell, fold, read_cell, write_cell
from dgpp.net.verbs.errors import ProtocolError
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout, Place, Pool
from dgpp.net.verbs.slots import Inbox, Outbox

FACTOR = 0x9E3779B97F4A7C15
BIG = 2**64 - 1


def bytes_of(*values):
    return np.array(values, np.uint8)


def fold_by_hand(data):
    """The definition, word by word."""
    told = 0
    for position, start in enumerate(range(0, len(data), 8)):
        word = int.from_bytes(data[start : start + 8].ljust(8, b"\0"), "little")
        told ^= (word + position + 1) * FACTOR % 2**64
    return told


@given(st.binary(max_size=100))
def test_the_fold_is_its_definition(data):
    assert fold(np.frombuffer(data, np.uint8)) == fold_by_hand(data)


def test_equal_words_do_not_cancel_and_places_count():
    assert fold(np.zeros(8, np.uint8)) == FACTOR
    twice = np.frombuffer(b"abcdefgh" * 2, np.uint8)
    assert fold(twice) not in (0, fold(np.zeros(16, np.uint8)))
    assert fold(np.frombuffer(b"abcdefghABCDEFGH", np.uint8)) != fold(
        np.frombuffer(b"ABCDEFGHabcdefgh", np.uint8)
    )


u64 = st.integers(0, BIG)
u32 = st.integers(0, 2**32 - 1)


@given(st.builds(Cell, u64, u64, u64, u32, u32), st.integers(0, 63), st.integers(1, 255))
def test_a_cell_comes_back_and_a_changed_byte_hides_it(cell, at, flip):
    held = np.full(CELL_BYTES, 9, np.uint8)
    write_cell(held, cell)
    assert read_cell(held) == cell
    held[at] ^= flip
    assert read_cell(held) is None


def test_memory_without_a_cell_has_none():
    assert read_cell(np.zeros(CELL_BYTES, np.uint8)) is None


@pytest.mark.parametrize("world", [2, 4])
def test_no_two_rows_of_a_slab_overlap(world):
    layout = Layout(Geometry(3, 100, 2, 130), 2, world)
    owners = np.zeros(layout.bytes, np.int64)
    for peer in range(1, world):
        for lane in range(2):
            for pool in Pool:
                place = layout.place(0, peer, lane, pool)
                assert (place.slots, place.slot_bytes) == ((3, 100), (2, 130))[pool]
                for slot in range(place.slots):
                    starts = [place.payload(first, slot) for first in (place.send, place.receive)]
                    for start in starts:
                        owners[start : start + place.slot_bytes] += 1
                        assert start % 64 == 0
                    rows = (place.send_doorbells, place.credits, place.receive_doorbells)
                    for first in (*rows, place.staged):
                        start = place.cell(first, slot)
                        owners[start : start + CELL_BYTES] += 1
                        assert start % 64 == 0
    assert owners.max() == 1
    # Latency slots of 100 bytes take 128, bulk ones of 130 take 192; 4 cells of 64 with each.
    assert layout.bytes == (world - 1) * 2 * (3 * (2 * 128 + 256) + 2 * (2 * 192 + 256))


class Pair:
    """Both halves of one channel; `carry` copies what the adapters would."""

    def __init__(self):
        self.place = Layout(SMALL, 1, 2).place(0, 1, 0, Pool.BULK)
        size = Layout(SMALL, 1, 2).bytes
        self.here, self.there = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        self.outbox = Outbox(self.here, self.place, "rank 1")
        self.inbox = Inbox(self.there, self.place, "rank 0")

    def carry(self, slot, *, payload=True, doorbell=True):
        p: Place = self.place
        if payload:
            a, b, n = p.payload(p.send, slot), p.payload(p.receive, slot), p.slot_bytes
            self.there[b : b + n] = self.here[a : a + n]
        if doorbell:
            self.cell(self.there, p.receive_doorbells, slot)[:] = self.cell(
                self.here, p.send_doorbells, slot
            )

    def carry_back(self, slot):
        self.cell(self.here, self.place.credits, slot)[:] = self.cell(
            self.there, self.place.staged, slot
        )

    def cell(self, slab, first, slot):
        start = self.place.cell(first, slot)
        return slab[start : start + CELL_BYTES]


def test_three_messages_through_two_slots():
    pair = Pair()
    assert pair.outbox.room() == 2
    first = pair.outbox.put(bytes_of(1, 2, 3), BIG)
    assert (first.sequence, first.generation, first.length, first.slot) == (1, BIG, 3, 0)
    second = pair.outbox.put(bytes_of(4), 7)
    assert (second.sequence, second.slot) == (2, 1)
    assert pair.outbox.room() == 0
    pair.carry(1)
    assert pair.inbox.take() is None, "the first is not there"
    pair.carry(0)
    taken = pair.inbox.take()
    assert taken.cell == first
    assert taken.payload.tolist() == [1, 2, 3]
    assert pair.inbox.take().cell == second
    assert pair.inbox.take() is None
    pair.inbox.release(first)
    pair.inbox.release(second)
    pair.carry_back(1)
    assert pair.outbox.room() == 0, "credits count in order"
    pair.carry_back(0)
    assert pair.outbox.room() == 2
    third = pair.outbox.put(bytes_of(), 8)
    assert (third.sequence, third.slot, third.length) == (3, 0, 0)
    assert pair.outbox.room() == 1, "the old credit of the slot is not this one's"
    assert pair.inbox.take() is None, "nor is the old doorbell"
    pair.carry(0)
    assert pair.inbox.take().cell == third


def test_a_doorbell_ahead_of_its_payload_proves_nothing():
    pair = Pair()
    cell = pair.outbox.put(bytes_of(*range(1, 40)), 1)
    pair.carry(0, payload=False)
    assert pair.inbox.announced() == cell
    assert pair.inbox.take() is None
    pair.carry(0, doorbell=False)
    assert pair.inbox.take().cell == cell


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            Cell(3, 0, 0, 0, 0),
            "rank 0 announced message 3 of 0 bytes in slot 0, due is 1 in slot 0",
        ),
        (Cell(1, 0, 0, 0, 1), "in slot 1, due is 1 in slot 0"),
        (Cell(1, 0, 0, 257, 0), "of 257 bytes"),
    ],
)
def test_a_doorbell_that_is_not_due_is_named(wrong, said):
    pair = Pair()
    write_cell(pair.cell(pair.there, pair.place.receive_doorbells, 0), wrong)
    with pytest.raises(ProtocolError, match=said):
        pair.inbox.take()


def test_a_credit_for_something_else_is_named():
    pair = Pair()
    cell = pair.outbox.put(bytes_of(5), 1)
    write_cell(pair.cell(pair.here, pair.place.credits, 0), cell._replace(fold=1))
    with pytest.raises(ProtocolError, match=r"rank 1 gave back message 1 of slot 0 .*hash 0x1\)"):
        pair.outbox.room()
