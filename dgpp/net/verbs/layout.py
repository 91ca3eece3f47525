"""Where everything lies in the slab that a rank registers for the bus: the same on all ranks.

First the words that ranks, engine and poller tell each other by. Then for each peer, lane and
pool: payloads to send, their cells, credits that came back, payloads received, their cells, and
credits on their way. Everything begins at a multiple of 64 bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from dgpp.net.verbs.frames import Geometry, Pool
from kernels_numba.meeting import CELL_BYTES

LINE_BYTES = 64
TEXT_BYTES = 1024


class Header(NamedTuple):
    """Byte offsets of what is said beside the messages.

    `lines`: 64 bytes a rank; a rank's own is its engine's, its poller writes it into the others'
    slabs. `poller` and `engine`: 64 bytes of each one's words. `arrivals`: u32 that grows with all
    that came, and u32 of who sleeps on it. `rests`: u32, not 0 while the poller sleeps. `ready`
    and `released`: u64 a channel, the engine's last message filled and last one given back.
    `text`: what broke the bus.
    """

    lines: int
    poller: int
    engine: int
    arrivals: int
    rests: int
    ready: int
    released: int
    text: int
    end: int


class Place(NamedTuple):
    """One channel: byte offsets in the slab of the first of `slots` payloads and cells, and of the
    words that count its messages."""

    number: int
    pool: Pool
    slots: int
    slot_bytes: int
    stride: int
    """From one payload to the next."""
    send: int
    send_cells: int
    credits: int
    receive: int
    receive_cells: int
    staged: int
    ready: int
    released: int


class Layout:
    """A slab of `bytes` for `world` ranks."""

    def __init__(self, geometry: Geometry, lanes: int, world: int) -> None:
        self.geometry, self.lanes, self.world = geometry, lanes, world
        self.header = _header(world, (world - 1) * lanes * len(geometry.pools))
        self._places: dict[tuple[int, int, Pool], Place] = {}
        end = self.header.end
        for peer in range(world - 1):
            for lane in range(lanes):
                for pool in geometry.pools:
                    place, end = _place(self.header, len(self._places), geometry, pool, end)
                    self._places[peer, lane, pool] = place
        self.bytes = end

    @property
    def channels(self) -> int:
        return len(self._places)

    def place(self, rank: int, peer: int, lane: int, pool: Pool) -> Place:
        """In `rank`'s slab, the channel that it shares with rank `peer`."""
        assert rank != peer
        return self._places[peer - (peer > rank), lane, pool]

    def line(self, rank: int) -> int:
        """Of what `rank` says of itself, in every slab."""
        return self.header.lines + LINE_BYTES * rank


def _header(world: int, channels: int) -> Header:
    counts = _aligned(8 * channels)
    sizes = (world * LINE_BYTES, 64, 64, 64, 64, counts, counts, TEXT_BYTES)
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return Header._make(offsets)


def _place(
    header: Header, number: int, geometry: Geometry, pool: Pool, start: int
) -> tuple[Place, int]:
    """The channel whose part of the slab begins at `start`, and where that ends."""
    slots, size = geometry.sizes[pool]
    stride = _aligned(size)
    starts = [start]
    for step in (stride, CELL_BYTES, CELL_BYTES, stride, CELL_BYTES, CELL_BYTES):
        starts.append(starts[-1] + slots * step)
    end = starts.pop()
    counts = (header.ready + 8 * number, header.released + 8 * number)
    return Place._make((number, pool, slots, size, stride, *starts, *counts)), end


def _aligned(size: int) -> int:
    return -(-size // CELL_BYTES) * CELL_BYTES
