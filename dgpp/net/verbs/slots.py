"""The engine's ends of all channels: messages put into slots, looked for, and given back in a ring.

Message n (from 1) goes into slot (n − 1) mod slots, none is left out. Its slot is filled again only
when its credit has come back; credits come back in the same order. A doorbell announces a message
but proves nothing of its payload: the hash in it does. Memory only: no clock, no network.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dgpp.net.verbs.errors import ProtocolError
from dgpp.net.verbs.frames import Pool
from dgpp.net.verbs.slab import BusSlab
from kernels_numba.cpu import bus


class Mark(NamedTuple):
    """What one collective's messages carry: its number, and its kind and size as one word."""

    generation: int
    tag: int


class OtherCollectiveError(Exception):
    """A peer's next message is of another collective: internal, the collective names it."""

    def __init__(self, peer: int, mark: Mark) -> None:
        super().__init__(peer, mark)
        self.peer, self.mark = peer, mark


class Until(NamedTuple):
    """A wait for rank `peer`: until the word at `address` is `value`, or something else came."""

    address: int
    value: int
    peer: int


class End:
    """One channel's. `record` is the address of its words (`kernels_numba.cpu.bus`)."""

    __slots__ = ("peer", "record", "slot_bytes", "slots", "whom", "words")

    def __init__(self, slab: BusSlab, peer: int, lane: int, pool: Pool) -> None:
        place = slab.layout.place(slab.rank, peer, lane, pool)
        self.peer, self.whom = peer, f"rank {peer}, lane {lane}"
        self.slots, self.slot_bytes = place.slots, place.slot_bytes
        words = self.words = np.zeros(bus.CHANNEL_WORDS, np.int64)
        starts = (
            place.send, place.send_cells, place.credits, place.receive, place.receive_cells,
            place.staged,
        )  # fmt: skip
        words[: len(starts)] = [slab.address + start for start in starts]
        words[bus.STRIDE], words[bus.SLOTS] = place.stride, place.slots
        words[bus.SLOT_BYTES] = place.slot_bytes
        words[bus.READY] = slab.address + place.ready
        words[bus.RELEASED] = slab.address + place.released
        self.record = int(words.ctypes.data)

    def room(self) -> Generator[Until, None, None]:
        """Waits until a slot is free. Raises ProtocolError."""
        while not (free := bus.room(self.record)):
            yield Until(bus.due_credit(self.record), int(self.words[bus.CREDITED]) + 1, self.peer)
        if free < 0:
            raise ProtocolError(
                f"roce bus: {self.whom} gave back another message than number "
                f"{self.words[bus.CREDITED] + 1}, which was due"
            )

    def take(self, mark: Mark) -> Generator[Until, None, int]:
        """Waits for the next message, whose payload's address it returns (`yield from`). Raises
        ProtocolError, or OtherCollectiveError."""
        while not (payload := bus.take(self.record, *mark)):
            yield Until(bus.due_cell(self.record), int(self.words[bus.TAKEN]) + 1, self.peer)
        if payload < 0:
            self._refuse(payload)
        return payload

    def look_for_other(self, mark: Mark) -> None:
        """Raises OtherCollectiveError where the next message has come, has the number of `mark` and
        is of another kind or size. A peer may be ahead: later numbers say nothing."""
        cell = bus.announced(self.record)
        if cell > 0:
            told = self._marked(cell)
            if told.generation == mark.generation and told != mark:
                self._refuse(bus.OTHER)

    def _refuse(self, found: int) -> None:
        cell = bus.due_cell(self.record)
        if found == bus.OTHER:
            raise OtherCollectiveError(self.peer, self._marked(cell))
        told = _words(cell)
        raise ProtocolError(
            f"roce bus: {self.whom} announced message {told[0]} of {told[3] & 0xFFFFFFFF} bytes in "
            f"slot {told[3] >> 32}, due is {self.words[bus.TAKEN] + 1} in slot "
            f"{self.words[bus.TAKEN] % self.slots}"
        )

    def _marked(self, cell: int) -> Mark:
        told = _words(cell)
        return Mark(told[1], told[4])


def _words(cell: int) -> list[int]:
    held = np.empty(bus.CELL_WORDS, np.int64)
    bus.copy_cell(cell, int(held.ctypes.data))
    return [int(word) for word in held]


def device_records(slab: BusSlab) -> npt.NDArray[np.int64]:
    """Channels that a device uses and counts by itself, of all ranks and lanes: int64 [world,
    lanes, CHANNEL_WORDS], zeros for this rank."""
    records = np.zeros((slab.world, slab.layout.lanes, bus.CHANNEL_WORDS), np.int64)
    for peer in range(slab.world):
        for lane in range(slab.layout.lanes):
            if peer != slab.rank:
                records[peer, lane] = End(slab, peer, lane, Pool.DEVICE).words
    return records


class Ends:
    """All of a rank's ends."""

    def __init__(self, slab: BusSlab) -> None:
        self.rank, self.world, self.lanes = slab.rank, slab.world, slab.layout.lanes
        self._slab = slab
        # The rank after this one first: all ranks begin with another.
        self.peers = [(self.rank + step) % self.world for step in range(1, self.world)]
        self._ends = {
            (peer, lane, pool): End(slab, peer, lane, pool)
            for peer in self.peers
            for lane in range(self.lanes)
            for pool in (Pool.LATENCY, Pool.BULK)
        }

    def latency(self, peer: int) -> End:
        """The latency pool is used on the first lane."""
        return self._ends[peer, 0, Pool.LATENCY]

    def bulk(self, peer: int, stripe: int) -> End:
        """Stripes go round the lanes."""
        return self._ends[peer, stripe % self.lanes, Pool.BULK]

    def view(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """uint8 [size] of the slab."""
        start = address - self._slab.address
        return self._slab.bytes[start : start + size]

    def poke(self) -> None:
        """Wake the poller, where it sleeps, for what was announced and given back."""
        if bus.is_set(self._slab.rests):
            os.eventfd_write(self._slab.bell, 1)

    def look_for_other(self, mark: Mark) -> None:
        """As `End.look_for_other`, of all channels: a peer that is at something else may have sent
        nothing where this rank waits."""
        for end in self._ends.values():
            end.look_for_other(mark)
