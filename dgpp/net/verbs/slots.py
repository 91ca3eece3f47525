"""The two halves of a channel: slots that are filled, announced, read and given back in a ring.

Message n (from 1) goes into slot (n − 1) mod slots, none is left out. Its slot is filled again only
when its credit has come back; credits come back in the same order. A doorbell announces a message
but proves nothing of its payload: the hash in it does. Memory only: no clock, no network.
"""

from __future__ import annotations

from typing import NamedTuple

from dgpp.net.verbs.cells import CELL_BYTES, Bytes, Cell, fold, read_cell, write_cell
from dgpp.net.verbs.errors import ProtocolError
from dgpp.net.verbs.layout import Place


class Outbox:
    """The half that sends. `slab` is uint8, this rank's whole one."""

    def __init__(self, slab: Bytes, place: Place, whom: str) -> None:
        self._slab, self.place, self._whom = slab, place, whom
        self._sent: list[Cell | None] = [None] * place.slots
        self.sequence = 0
        """Of the last message."""
        self.credited = 0
        """Of the last message that the peer has read."""

    def room(self) -> int:
        """Slots that are free, after a look at the credits. Raises ProtocolError."""
        place = self.place
        while self.credited < self.sequence:
            slot = self.credited % place.slots
            start = place.cell(place.credits, slot)
            cell = read_cell(self._slab[start : start + CELL_BYTES])
            sent = self._sent[slot]
            assert sent is not None
            if cell is None or cell.sequence == sent.sequence - place.slots:
                break
            if cell != sent:
                raise ProtocolError(
                    f"roce bus: {self._whom} gave back message {cell.sequence} of slot "
                    f"{cell.slot} ({cell.length} bytes, hash {cell.fold:#x}), not "
                    f"{sent.sequence} of slot {slot} ({sent.length} bytes, hash {sent.fold:#x})"
                )
            self.credited += 1
        return place.slots - (self.sequence - self.credited)

    def put(self, payload: Bytes, generation: int) -> Cell:
        """Fill the next slot, of which there must be one (`room`), with uint8 `payload`, at most
        `slot_bytes`; then payload and doorbell can be sent, in this order."""
        place = self.place
        assert self.sequence - self.credited < place.slots, "no credit, no slot"
        assert payload.size <= place.slot_bytes
        slot = self.sequence % place.slots
        self.sequence += 1
        start = place.payload(place.send, slot)
        self._slab[start : start + payload.size] = payload
        cell = Cell(self.sequence, generation, fold(payload), payload.size, slot)
        start = place.cell(place.send_doorbells, slot)
        write_cell(self._slab[start : start + CELL_BYTES], cell)
        self._sent[slot] = cell
        return cell


class Received(NamedTuple):
    """A message that has wholly come. `payload` is the slot itself, uint8 [length]: to be read
    before the slot is given back."""

    cell: Cell
    payload: Bytes


class Inbox:
    """The half that receives. `slab` is uint8, this rank's whole one."""

    def __init__(self, slab: Bytes, place: Place, whom: str) -> None:
        self._slab, self.place, self._whom = slab, place, whom
        self.taken = 0
        """Sequence of the last message that `take` returned."""
        self.released = 0

    def announced(self) -> Cell | None:
        """The doorbell of the next message, None before it has come. Raises ProtocolError."""
        place = self.place
        due = self.taken + 1
        slot = self.taken % place.slots
        start = place.cell(place.receive_doorbells, slot)
        cell = read_cell(self._slab[start : start + CELL_BYTES])
        if cell is None or cell.sequence == due - place.slots:
            return None
        if cell.sequence != due or cell.slot != slot or cell.length > place.slot_bytes:
            raise ProtocolError(
                f"roce bus: {self._whom} announced message {cell.sequence} of {cell.length} bytes "
                f"in slot {cell.slot}, due is {due} in slot {slot}"
            )
        return cell

    def take(self) -> Received | None:
        """The next message, None until its doorbell and all of its payload have come."""
        cell = self.announced()
        if cell is None or self.taken - self.released == self.place.slots:
            return None
        start = self.place.payload(self.place.receive, cell.slot)
        payload = self._slab[start : start + cell.length]
        if fold(payload) != cell.fold:
            return None
        self.taken += 1
        return Received(cell, payload)

    def release(self, cell: Cell) -> None:
        """Stage the credit of the oldest message that was taken and is not released."""
        assert cell.sequence == self.released + 1 <= self.taken, "slots are given back in order"
        self.released += 1
        start = self.place.cell(self.place.staged, cell.slot)
        write_cell(self._slab[start : start + CELL_BYTES], cell)
