"""Posts what an engine put into its slab, polls completions, tells the engine what came."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from dgpp.net.futex import FUTEX_NUMBER
from dgpp.net.verbs.errors import BusError, PostError
from dgpp.net.verbs.frames import Pool
from dgpp.net.verbs.library import failure
from dgpp.net.verbs.mesh import Link, Mesh
from dgpp.net.verbs.slab import BusSlab
from kernels_numba.cpu import poller
from kernels_numba.cpu.requests import REQUEST_WORDS, WC_WORDS

BULK_OUT = 4
"""Messages of a bulk channel that are on their way at once at most, unless told otherwise."""


class Carrier:
    """Over a connected mesh; receives are posted as soon as it is made. One thread uses it.

    `pace` are picoseconds that a byte takes at least where messages may be large, by lane; 0 for no
    pace. `bulk_out` is how many messages of a bulk channel may be on their way.
    """

    def __init__(
        self,
        mesh: Mesh,
        slab: BusSlab,
        pace: tuple[int, ...] = (0, 0),
        bulk_out: int = BULK_OUT,
    ) -> None:
        self._mesh, self._slab = mesh, slab
        # The rank after this one first: all ranks begin with another.
        self._links = sorted(mesh.links, key=lambda link: (link.peer - mesh.rank) % mesh.world)
        self.culprit = -1
        """The rank whose work failed."""
        self._records = np.zeros((len(self._links), poller.LINK_WORDS), np.int64)
        for record, link in zip(self._records, self._links, strict=True):
            _fill(record, link, slab, pace[link.lane], bulk_out)
        self._queues = np.array([queue_of(mesh, lane) for lane in range(len(mesh.queues))])
        self._memory = np.zeros(poller.POLLED * WC_WORDS + REQUEST_WORDS + 2, np.int64)
        self._loop = np.zeros(poller.LOOP_WORDS, np.int64)
        self._fill_loop()
        self._address = int(self._loop.ctypes.data)
        for place, link in enumerate(self._links):
            if refused := poller.open_link(self._address, place):
                whom = mesh.whom(link.peer, link.lane)
                raise PostError(f"roce bus: {whom}: no receive could be posted (error {refused})")

    def _fill_loop(self) -> None:
        loop, memory = self._loop, int(self._memory.ctypes.data)
        calls = self._links[0].pair.calls
        library = ctypes.CDLL(None)
        requests = memory + 8 * poller.POLLED * WC_WORDS
        for word, value in (
            (poller.LINKS, self._records.ctypes.data),
            (poller.LINK_COUNT, len(self._links)),
            (poller.QUEUES, self._queues.ctypes.data),
            (poller.QUEUE_COUNT, self._queues.size),
            (poller.POLL, calls.poll),
            (poller.COMPLETIONS, memory),
            (poller.REQUESTS, requests),
            (poller.TIME, requests + 8 * REQUEST_WORDS),
            (poller.ARRIVALS, self._slab.arrivals),
            (poller.SYSCALL, _address_of(library.syscall)),
            (poller.FUTEX, FUTEX_NUMBER),
            (poller.CLOCK, _address_of(library.clock_gettime)),
        ):
            loop[word] = value

    @property
    def idle(self) -> bool:
        """Whether all lines that were to be written have arrived."""
        told, done = self._records[:, poller.TOLD], self._records[:, poller.DONE]
        waits = (told > done) | (self._records[:, poller.TELL] != 0)
        return not (waits & (self._records[:, poller.DEAD] == 0)).any()

    @property
    def figures(self) -> dict[str, int]:
        """What the loop counted: messages sent, calls that post, receives and turns."""
        words = {
            "messages": poller.MESSAGES,
            "posts": poller.POSTS,
            "received": poller.RECEIVED,
            "turns": poller.TURNS,
        }
        return {name: int(self._loop[word]) for name, word in words.items()}

    def turn(self) -> bool:
        """Once round; whether anything was done. Raises the BusError of the first work that
        failed, but for peers that have left."""
        while (worked := poller.turn(self._address)) < 0:
            self._heed_failure()
        return worked > 0

    def carry(self, until_s: float, idle_s: float) -> bool:
        """Turns until the monotonic clock reads `until_s`, or there was nothing to do for
        `idle_s`; whether it was the latter. Raises as `turn`."""
        until_ns, idle_ns = int(until_s * 1e9), int(min(idle_s, 1e9) * 1e9)
        while (ended := poller.run(self._address, until_ns, idle_ns)) == poller.FAILURE:
            self._heed_failure()
        return ended == poller.IDLE

    def tell(self, *, everywhere: bool = False) -> None:
        """Write this rank's line to every peer, where the last one has arrived; `everywhere`: by
        every link, so that all work before it has arrived too when it has."""
        for record, link in zip(self._records, self._links, strict=True):
            if everywhere or (link.lane == 0 and link.near.pool is Pool.LATENCY):
                record[poller.TELL] = 1

    def last_words(self, culprit: int) -> None:
        """The line to all but `culprit`, once; whether it arrives does not matter any more."""
        self._bury(culprit)
        self.tell()
        try:
            self.carry(time.monotonic() + _LAST_WORDS_S, _LAST_WORDS_S)
        except BusError:
            return

    def _bury(self, peer: int) -> None:
        for record, link in zip(self._records, self._links, strict=True):
            if link.peer == peer:
                record[poller.DEAD] = 1

    def _heed_failure(self) -> None:
        """Whoever has left is not missed; any other failure raises."""
        place, status, vendor = (
            int(self._loop[word]) for word in (poller.FAILED, poller.STATUS, poller.VENDOR)
        )
        if place < 0:
            raise BusError(f"roce bus: a completion queue is broken ({status - poller.REFUSED})")
        link = self._links[place]
        if self._slab.left(link.peer):
            self._bury(link.peer)
            return
        self.culprit = link.peer
        whom = self._mesh.whom(link.peer, link.lane)
        if status >= poller.REFUSED:
            refused = status - poller.REFUSED
            raise PostError(f"roce bus: {whom}: the queue pair takes no work (error {refused})")
        raise failure(status, vendor, whom)


_LAST_WORDS_S = 0.05


def queue_of(mesh: Mesh, lane: int) -> int:
    """The completion queue of a lane, as its queue pairs know it."""
    return next(link.pair.calls.queue for link in mesh.links if link.lane == lane)


def _fill(record: np.ndarray, link: Link, slab: BusSlab, pace: int, bulk_out: int) -> None:
    near, far, calls = link.near, link.far, link.pair.calls
    bulk, small = near.pool is Pool.BULK, near.pool is Pool.LATENCY
    line = slab.layout.line(slab.rank)
    for word, value in (
        (poller.PAIR, calls.pair),
        (poller.POST_SEND, calls.post_send),
        (poller.POST_RECEIVE, calls.post_receive),
        (poller.LKEY, link.lkey),
        (poller.RKEY, link.rkey),
        (poller.DEPTH, link.depth),
        (poller.READY, slab.address + near.ready),
        (poller.RELEASED, slab.address + near.released),
        (poller.SLOTS, near.slots),
        (poller.STRIDE, near.stride),
        (poller.SEND, link.start + near.send),
        (poller.SEND_CELLS, link.start + near.send_cells),
        (poller.STAGED, link.start + near.staged),
        (poller.FAR_RECEIVE, link.remote + far.receive),
        (poller.FAR_CELLS, link.remote + far.receive_cells),
        (poller.FAR_CREDITS, link.remote + far.credits),
        (poller.LINE, link.start + line),
        (poller.FAR_LINE, link.remote + line),
        (poller.PACE_PS, 0 if small else pace),
        (poller.MOST_OUT, bulk_out if bulk else 0),
    ):
        record[word] = value


def _address_of(function: object) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)  # type: ignore[arg-type]
