"""Where everything lies in the slab that a rank registers for the bus: the same on all ranks.

For each peer, lane and pool: payloads to send, their doorbells, credits that came back, payloads
received, their doorbells, and credits on their way. Everything begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from dgpp.net.verbs.cells import CELL_BYTES
from dgpp.net.verbs.frames import Geometry


class Pool(enum.IntEnum):
    """Slots of one size: small sums wait for nothing large."""

    LATENCY = 0
    BULK = 1


class Place(NamedTuple):
    """One channel: byte offsets in the slab of the first of `slots` payloads and cells."""

    pool: Pool
    slots: int
    slot_bytes: int
    stride: int
    """From one payload to the next."""
    send: int
    send_doorbells: int
    credits: int
    receive: int
    receive_doorbells: int
    staged: int

    def payload(self, first: int, slot: int) -> int:
        """Of `slot`, where `first` is `send` or `receive`."""
        return first + slot * self.stride

    def cell(self, first: int, slot: int) -> int:
        """Of `slot`, where `first` is one of the four rows of cells."""
        return first + slot * CELL_BYTES


class Layout:
    """A slab of `bytes` for `world` ranks."""

    def __init__(self, geometry: Geometry, lanes: int, world: int) -> None:
        self.world = world
        self._places: dict[tuple[int, int, Pool], Place] = {}
        end = 0
        for peer in range(world - 1):
            for lane in range(lanes):
                for pool in Pool:
                    place, end = _place(geometry, pool, end)
                    self._places[peer, lane, pool] = place
        self.bytes = end

    def place(self, rank: int, peer: int, lane: int, pool: Pool) -> Place:
        """In `rank`'s slab, the channel that it shares with rank `peer`."""
        assert rank != peer
        return self._places[peer - (peer > rank), lane, pool]


def _place(geometry: Geometry, pool: Pool, start: int) -> tuple[Place, int]:
    """The channel whose part of the slab begins at `start`, and where that ends."""
    if pool is Pool.LATENCY:
        slots, size = geometry.latency_slots, geometry.latency_slot_bytes
    else:
        slots, size = geometry.bulk_slots, geometry.bulk_slot_bytes
    stride = -(-size // CELL_BYTES) * CELL_BYTES
    offsets = []
    for step in (stride, CELL_BYTES, CELL_BYTES, stride, CELL_BYTES, CELL_BYTES):
        offsets.append(start)
        start += slots * step
    return Place(pool, slots, size, stride, *offsets), start
