"""Posts what an engine put into its slab, polls completions, tells the engine what came."""

from __future__ import annotations

from dgpp.net.futex import futex_wake
from dgpp.net.verbs.errors import BusError
from dgpp.net.verbs.layout import LINE_BYTES, Pool
from dgpp.net.verbs.library import Completion, Event, require_done
from dgpp.net.verbs.mesh import Link, Mesh
from dgpp.net.verbs.slab import BusSlab
from kernels_numba.cpu import bus
from kernels_numba.meeting import CELL_BYTES

_POLLED = 64
_PEER_SHIFT = 32
_LINE = 1 << 31
"""In a work's number: it carries this rank's line."""


class _Channel:
    def __init__(self, link: Link, slab: BusSlab) -> None:
        self.link = link
        self.words = slab.words
        self.ready, self.released = link.near.ready // 8, link.near.released // 8
        self.posted = self.credited = self.out = 0
        for _ in range(link.depth):
            link.pair.post_receive(link.near.number, link.start, 0, link.lkey)

    def write(
        self, wr_id: int, start: int, size: int, target: int, *, told: bool, signaled: bool
    ) -> None:
        link = self.link
        link.pair.post_write(
            wr_id, link.start + start, size, link.lkey, link.remote + target, link.rkey,
            immediate=wr_id & 0xFFFF if told else None, signaled=signaled,
        )  # fmt: skip
        self.out += signaled

    def carry(self) -> None:
        link = self.link
        near, far, number = link.near, link.far, link.peer << _PEER_SHIFT | link.near.number
        while self.posted < self.words[self.ready]:
            slot = self.posted % near.slots
            cell = near.send_cells + CELL_BYTES * slot
            size = self.words[cell // 8 + 3] & 0xFFFFFFFF
            size = -(-size // 8) * 8
            if size:
                self.write(
                    number, near.send + near.stride * slot, size,
                    far.receive + far.stride * slot, told=False, signaled=False,
                )  # fmt: skip
            self.write(
                number, cell, CELL_BYTES, far.receive_cells + CELL_BYTES * slot, told=True,
                signaled=True,
            )  # fmt: skip
            self.posted += 1
        while self.credited < self.words[self.released]:
            slot = self.credited % near.slots
            self.write(
                number, near.staged + CELL_BYTES * slot, CELL_BYTES,
                far.credits + CELL_BYTES * slot, told=True, signaled=True,
            )  # fmt: skip
            self.credited += 1


class Carrier:
    """Over a connected mesh; receives are posted as soon as it is made. One thread uses it."""

    def __init__(self, mesh: Mesh, slab: BusSlab) -> None:
        self._mesh, self._slab = mesh, slab
        self._channels = [_Channel(link, slab) for link in mesh.links]
        self._telling: set[int] = set()
        self.culprit = -1
        """The rank whose work failed."""

    @property
    def idle(self) -> bool:
        """Whether all that was signaled has arrived."""
        return not any(channel.out for channel in self._channels)

    def carry(self) -> None:
        """Once round. Raises the BusError of the first work that failed."""
        for channel in self._channels:
            channel.carry()
        for lane, queue in enumerate(self._mesh.queues):
            for done in queue.poll(_POLLED):
                self._note(done, lane)

    def tell(self) -> None:
        """Write this rank's line to every peer where the last one has arrived."""
        for channel in self._channels:
            link = channel.link
            if link.lane == 0 and link.near.pool is Pool.LATENCY and link.peer not in self._telling:
                self._telling.add(link.peer)
                line = self._slab.layout.line(self._slab.rank)
                number = link.peer << _PEER_SHIFT | _LINE | link.near.number
                channel.write(number, line, LINE_BYTES, line, told=False, signaled=True)

    def last_words(self, culprit: int) -> None:
        """The line to all but `culprit`, once; whether it arrives does not matter any more."""
        self._telling = {culprit}
        try:
            self.tell()
            for queue in self._mesh.queues:
                queue.poll(_POLLED)
        except BusError:
            return

    def wake_engine(self) -> None:
        if bus.arrive(self._slab.arrivals):
            futex_wake(self._slab.arrivals)

    def _note(self, done: Completion, lane: int) -> None:
        if done.event is Event.WRITTEN:
            link = self._channels[done.wr_id].link
            link.pair.post_receive(done.wr_id, link.start, 0, link.lkey)
            self.wake_engine()
            return
        peer = done.wr_id >> _PEER_SHIFT
        self._channels[done.wr_id & (_LINE - 1)].out -= 1
        if done.wr_id & _LINE:
            self._telling.discard(peer)
        if done.event is Event.FAILED and not self._slab.left(peer):
            self.culprit = peer
            require_done(done, self._mesh.whom(peer, lane))
