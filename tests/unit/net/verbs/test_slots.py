"""Slots: filled and given back in a ring, announced by doorbells, proved by a hash."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import SMALL

from dgpp.net.verbs.errors import ProtocolError
from dgpp.net.verbs.frames import Geometry, Pool
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.slab import BusSlab, create_bus
from dgpp.net.verbs.slots import Ends, Mark, OtherCollectiveError
from kernels_numba.cpu import bus
from kernels_numba.meeting import CELL_BYTES

FACTOR = 0x9E3779B97F4A7C15
BIG = 2**63 - 1
MARK = Mark(BIG, 3)


def address_of(array):
    return int(array.ctypes.data)


def fold_by_hand(words):
    """The definition, word by word."""
    told = 0
    for position, word in enumerate(words):
        told ^= (word + position + 1) * FACTOR % 2**64
    return told


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_the_fold_is_its_definition(words):
    held = np.array(words, np.uint64)
    assert bus.fold(address_of(held), held.size) % 2**64 == fold_by_hand(words)


def test_equal_words_do_not_cancel_and_places_count():
    assert fold_by_hand([0]) == FACTOR
    assert fold_by_hand([7, 7]) not in (0, fold_by_hand([0, 0]))
    assert fold_by_hand([1, 2]) != fold_by_hand([2, 1])


@pytest.mark.parametrize(("world", "devices"), [(2, 0), (4, 0), (3, 5)])
def test_no_two_rows_of_a_slab_overlap(world, devices):
    layout = Layout(Geometry(3, 100, 2, 130, devices, 64), 2, world)
    owners = np.zeros(layout.bytes, np.int64)
    owners[: layout.header.end] += 1
    for peer in range(1, world):
        for lane in range(2):
            for pool in layout.geometry.pools:
                place = layout.place(0, peer, lane, pool)
                assert (place.slots, place.slot_bytes) == ((3, 100), (2, 130), (5, 64))[pool]
                for slot in range(place.slots):
                    for first in (place.send, place.receive):
                        start = first + slot * place.stride
                        owners[start : start + place.slot_bytes] += 1
                        assert start % 64 == 0
                    rows = (place.send_cells, place.credits, place.receive_cells, place.staged)
                    for first in rows:
                        start = first + slot * CELL_BYTES
                        owners[start : start + CELL_BYTES] += 1
                        assert start % 64 == 0
    assert owners.max() == 1
    # Latency slots of 100 bytes take 128, bulk ones of 130 take 192, the device's are whole lines;
    # 4 cells of 64 with each.
    lane = 3 * (2 * 128 + 256) + 2 * (2 * 192 + 256) + devices * (2 * 64 + 256)
    messages = (world - 1) * 2 * lane
    # A line a rank, four blocks of words, two words a channel, a text.
    counts = -(-8 * (world - 1) * 2 * (3 if devices else 2) // 64) * 64
    assert layout.bytes == messages + 64 * world + 4 * 64 + 2 * counts + 1024


class Pair:
    """Both ends of one channel; `carry` copies what the adapters would."""

    def __init__(self):
        layout = Layout(SMALL, 1, 2)
        self.place = layout.place(0, 1, 0, Pool.BULK)
        self.slabs = []
        for rank in range(2):
            files = create_bus(layout)
            self.slabs.append(BusSlab(files, rank, layout))
            files.close()
        self.here, self.there = (slab.bytes for slab in self.slabs)
        self.out, self.inbound = (
            Ends(slab).bulk(1 - rank, 0) for rank, slab in enumerate(self.slabs)
        )

    def put(self, values, mark=MARK):
        assert not list(self.out.room())
        words = np.array(values, np.int64)
        hashed = bus.fold(address_of(words), words.size)
        bus.send(self.out.record, address_of(words), 8 * words.size, hashed, *mark)

    def carry(self, slot, *, payload=True, doorbell=True):
        p = self.place
        if payload:
            a, b = p.send + slot * p.stride, p.receive + slot * p.stride
            self.there[b : b + p.slot_bytes] = self.here[a : a + p.slot_bytes]
        if doorbell:
            self.cell(1, p.receive_cells, slot)[:] = self.cell(0, p.send_cells, slot)

    def carry_back(self, slot):
        self.cell(0, self.place.credits, slot)[:] = self.cell(1, self.place.staged, slot)

    def cell(self, rank, first, slot):
        start = first + slot * CELL_BYTES
        return self.slabs[rank].bytes[start : start + CELL_BYTES]

    def take(self, mark=MARK):
        """The payload's words, None where the end would wait."""
        steps = self.inbound.take(mark)
        try:
            next(steps)
        except StopIteration as done:
            start = done.value - self.slabs[1].address
            return self.there[start : start + 24].view(np.int64).tolist()
        return None

    def waits_for_room(self):
        return next(self.out.room(), None) is not None


@pytest.fixture
def pair():
    made = Pair()
    yield made
    for slab in made.slabs:
        slab.close()


def test_three_messages_through_two_slots(pair):
    pair.put([1, 2, 3])
    pair.put([4, 5, 6])
    assert pair.waits_for_room()
    pair.carry(1)
    assert pair.take() is None, "the first is not there"
    pair.carry(0)
    assert pair.take() == [1, 2, 3]
    assert pair.take() == [4, 5, 6]
    assert pair.take() is None
    bus.give_back(pair.inbound.record)
    bus.give_back(pair.inbound.record)
    pair.carry_back(1)
    assert pair.waits_for_room(), "credits count in order"
    pair.carry_back(0)
    pair.put([7, 8, 9])
    assert bus.room(pair.out.record) == 1, "the old credit of the slot is not this one's"
    assert pair.take() is None, "nor is the old doorbell"
    pair.carry(0)
    assert pair.take() == [7, 8, 9]


def test_a_doorbell_ahead_of_its_payload_proves_nothing(pair):
    pair.put([1, 2, 3])
    pair.carry(0, payload=False)
    assert pair.take() is None
    pair.carry(0, doorbell=False)
    assert pair.take() == [1, 2, 3]


@given(st.integers(0, CELL_BYTES - 1), st.integers(1, 255))
def test_a_cell_of_which_a_byte_is_missing_is_not_there(at, flip):
    pair = Pair()
    pair.put([1, 2, 3])
    pair.carry(0)
    cell = pair.cell(1, pair.place.receive_cells, 0)
    cell[at] ^= flip
    assert pair.take() is None
    cell[at] ^= flip
    assert pair.take() == [1, 2, 3]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((3, 0, 0, 0, 0), "announced message 3 of 0 bytes in slot 0, due is 1 in slot 0"),
        ((1, 0, 0, 1 << 32, 0), "in slot 1, due is 1 in slot 0"),
        ((1, 0, 0, 257, 0), "of 257 bytes"),
    ],
)
def test_a_doorbell_that_is_not_due_is_named(pair, wrong, said):
    bus.write_cell(address_of(pair.cell(1, pair.place.receive_cells, 0)), *wrong)
    with pytest.raises(ProtocolError, match=rf"rank 0, lane 0 .*{said}"):
        pair.take()


def test_a_credit_for_something_else_is_named(pair):
    pair.put([5])
    pair.carry(0)
    assert pair.take()
    bus.give_back(pair.inbound.record)
    pair.carry_back(0)
    bus.write_cell(address_of(pair.cell(0, pair.place.credits, 0)), 1, *MARK, 8, 0)
    with pytest.raises(ProtocolError, match=r"rank 1, lane 0 gave back another .* number 1"):
        list(pair.out.room())


def test_another_collective_s_message_is_told_apart(pair):
    pair.put([1], Mark(7, 11))
    pair.carry(0)
    for look in (pair.inbound.look_for_other, pair.take):
        with pytest.raises(OtherCollectiveError) as told:
            look(Mark(7, 12))
        assert (told.value.peer, told.value.mark) == (0, Mark(7, 11))
    pair.inbound.look_for_other(Mark(6, 11))
    pair.inbound.look_for_other(Mark(7, 11))
    assert pair.take(Mark(7, 11)) is not None
