"""A channel: one queue pair to one peer on one lane, and the slots of one pool each way."""

from __future__ import annotations

import enum
from typing import NamedTuple

from dgpp.net.verbs.cells import CELL_BYTES, Bytes, Cell
from dgpp.net.verbs.layout import Place
from dgpp.net.verbs.library import QueuePair, Region
from dgpp.net.verbs.slots import Inbox, Outbox, Received

_POOL_SHIFT, _KIND_SHIFT, _PEER_SHIFT = 32, 40, 44


class Kind(enum.IntEnum):
    """What a piece of posted work carries."""

    PAYLOAD = 0
    DOORBELL = 1
    CREDIT = 2


def queue_depth(slots: int) -> int:
    """What a channel's queue pair must hold: payload, doorbell and credit a slot, for two turns of
    the ring, and the unsignaled credits that leave it only with the next signaled one."""
    return 8 * slots


def peer_of(wr_id: int) -> int:
    """The rank that work of this number was meant for."""
    return wr_id >> _PEER_SHIFT


class Near(NamedTuple):
    """This rank's end: its whole slab, uint8, registered as `region`."""

    slab: Bytes
    region: Region
    place: Place


class Far(NamedTuple):
    """The peer's: where its slab lies there, the key to write into it, its place of the channel."""

    slab: int
    rkey: int
    place: Place


class Channel:
    """Over a connected queue pair, whose completions its owner polls and heeds."""

    def __init__(self, pair: QueuePair, near: Near, far: Far, peer: int, whom: str) -> None:
        self._pair, self._near, self._far, self._peer = pair, near, far, peer
        self.outbox = Outbox(near.slab, near.place, whom)
        self.inbox = Inbox(near.slab, near.place, whom)

    def send(self, payload: Bytes, generation: int) -> Cell:
        """Post uint8 `payload` as the next message; `outbox.room()` says whether it may."""
        here, there = self._near.place, self._far.place
        cell = self.outbox.put(payload, generation)
        slot = cell.slot
        if cell.length:
            self._write(
                Kind.PAYLOAD, slot, here.payload(here.send, slot), cell.length,
                there.payload(there.receive, slot), signaled=False,
            )  # fmt: skip
        self._write(
            Kind.DOORBELL, slot, here.cell(here.send_doorbells, slot), CELL_BYTES,
            there.cell(there.receive_doorbells, slot), signaled=True,
        )  # fmt: skip
        return cell

    def take(self) -> Received | None:
        """The next message that has wholly come."""
        return self.inbox.take()

    def release(self, cell: Cell) -> None:
        """Give the slot of the oldest taken message back to the peer."""
        here, there = self._near.place, self._far.place
        self.inbox.release(cell)
        # Of a rank that only receives, nothing else is signaled.
        signaled = cell.slot == 0
        self._write(
            Kind.CREDIT, cell.slot, here.cell(here.staged, cell.slot), CELL_BYTES,
            there.cell(there.credits, cell.slot), signaled=signaled,
        )  # fmt: skip

    def _write(
        self, kind: Kind, slot: int, start: int, length: int, target: int, *, signaled: bool
    ) -> None:
        pool = self._near.place.pool
        wr_id = self._peer << _PEER_SHIFT | kind << _KIND_SHIFT | pool << _POOL_SHIFT | slot
        region, far = self._near.region, self._far
        self._pair.post_write(
            wr_id, region.address + start, length, region.lkey, far.slab + target, far.rkey,
            signaled=signaled,
        )  # fmt: skip
