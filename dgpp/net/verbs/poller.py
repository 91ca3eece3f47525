"""A rank's poller: brings the bus up and carries what the engine puts into the slab."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections.abc import Sequence

import msgspec

from dgpp.errors import DgppError
from dgpp.net.errors import CollectiveError
from dgpp.net.futex import futex_wake
from dgpp.net.verbs.carrier import BULK_OUT, Carrier
from dgpp.net.verbs.frames import Pool, RankFrame
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.library import Port
from dgpp.net.verbs.mesh import Mesh
from dgpp.net.verbs.rendezvous import Gathering, Joining
from dgpp.net.verbs.slab import BusFiles, BusSlab, State
from dgpp.net.verbs.table import Party
from dgpp.net.watch import LOOK_S, Limits, Patience
from kernels_numba.cpu import bus

NAP_S = 1e-3
"""How long a poller looks for work before it sleeps, where every process has a CPU."""
MARGIN = 0.85
DOZE_S = 50e-6
"""How long it sleeps at once where a device may have work for it, which rings no bell."""
_STEP_S = 0.01
FAREWELL_S = 1.0
"""How long a poller that ends waits until its last words have arrived."""


class Meeting(msgspec.Struct, frozen=True):
    """Where ranks meet: rank 0's `host` and `port` (ports.fabric), the cluster token, this dgpp's
    version, and how long all may take (engine.rendezvous_timeout_ms)."""

    host: str
    port: int
    token: bytes
    version: str
    timeout_s: float


class Poller:
    """`ports` are the lanes' and stay the caller's. `join`, then `run` in a thread of its own,
    `stop` from any, then `close`.

    After `nap_s` without work it sleeps until a completion or the engine wakes it. Large messages
    leave a queue pair no faster than `pace_gbps`; 0: as fast as they can, None: as fast as the
    peers' ports take them from all ranks at once. `bulk_out` of them are on their way at most.
    """

    def __init__(
        self,
        files: BusFiles,
        rank: int,
        layout: Layout,
        ports: Sequence[Port],
        *,
        nap_s: float | None = None,
        pace_gbps: float | None = None,
        bulk_out: int = BULK_OUT,
    ) -> None:
        self.rank, self.layout = rank, layout
        self.slab = BusSlab(files, rank, layout)
        self._mesh = Mesh(ports, rank, layout, self.slab.address)
        self._queues = {queue.fd: queue for queue in self._mesh.queues}
        self._bells = select.poll()
        for fd in (self.slab.bell, *self._queues):
            self._bells.register(fd, select.POLLIN)
        self._nap_s = default_nap_s(layout.world) if nap_s is None else nap_s
        self._bulk_out = bulk_out
        self._pace = tuple(
            picoseconds(share(port.gbps, layout) if pace_gbps is None else pace_gbps)
            for port in ports
        )
        self._carrier: Carrier | None = None
        self._stopped = False
        self.naps = 0

    async def join(self, meeting: Meeting, listener: socket.socket | None = None) -> None:
        """Meet the other ranks' pollers; `listener` is rank 0's, which listens at ports.fabric.
        Raises JoinError or BusError, which the engine is told too."""
        try:
            await self._join(meeting, listener)
        except DgppError as error:
            self.slab.fail(-1, str(error), 1)
            raise
        self.opened()

    async def _join(self, meeting: Meeting, listener: socket.socket | None) -> None:
        party = Party(meeting.version, meeting.token, self.frame())
        side: Gathering | Joining
        if self.rank == 0:
            assert listener is not None
            side = Gathering(listener, party, meeting.timeout_s)
        else:
            side = Joining(meeting.host, meeting.port, party, meeting.timeout_s)
        try:
            self.connect(await (side.gather() if isinstance(side, Gathering) else side.join()))
            await side.ready()
        finally:
            await side.close()

    def frame(self) -> RankFrame:
        """What the other ranks' pollers must know of this one."""
        return self._mesh.frame()

    def connect(self, table: Sequence[RankFrame]) -> None:
        """To all of `table`, everyone's frame by rank: then they may send. Raises BusError."""
        self._mesh.connect(table)
        self._carrier = Carrier(self._mesh, self.slab, self._pace, self._bulk_out)
        # Compiled now, and not while others wait for this rank's first message.
        self._carrier.carry(0.0, 0.0)

    def opened(self) -> None:
        """All ranks have connected: the engine may begin."""
        self.slab.poller_beat()
        self.slab.state = State.JOINED

    @property
    def carrier(self) -> Carrier:
        assert self._carrier is not None, "connected first"
        return self._carrier

    def run(self) -> None:
        """Carry until the engine is done or `stop` is called. Raises CollectiveError where the bus
        broke, which the engine is told too."""
        carrier = self.carrier
        watch = Watch(self.slab)
        due = 0.0
        try:
            while not (self._stopped or self.slab.asked_to_stop):
                if carrier.carry(due, self._nap_s):
                    self._nap(carrier, due)
                if time.monotonic() >= due:
                    due = time.monotonic() + LOOK_S
                    self.slab.poller_beat()
                    carrier.tell()
                    watch.look()
            self._farewell(carrier)
            self.slab.state = State.ENDED
        except CollectiveError as error:
            self.broke(carrier.culprit if watch.culprit < 0 else watch.culprit, error)
            raise

    def _nap(self, carrier: Carrier, until_s: float) -> None:
        """Sleep until there is something to do, or the clock reads `until_s`."""
        slab, queues = self.slab, self._queues
        bus.set_word(slab.rests, 1)
        try:
            for queue in queues.values():
                queue.arm()
            # What came or was announced before that rings no bell.
            if carrier.turn() or self._stopped or slab.asked_to_stop:
                return
            self.naps += 1
            wait_s = max(0.0, until_s - time.monotonic())
            if Pool.DEVICE in self.layout.geometry.pools:
                time.sleep(min(DOZE_S, wait_s))
                wait_s = 0.0
            for fd, _event in self._bells.poll(1e3 * wait_s):
                if fd == slab.bell:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(fd)
                else:
                    queues[fd].quiet()
        finally:
            bus.set_word(slab.rests, 0)

    def stop(self) -> None:
        self._stopped = True
        os.eventfd_write(self.slab.bell, 1)

    def close(self) -> None:
        self._mesh.close()
        self.slab.close()

    def _farewell(self, carrier: Carrier) -> None:
        """All that was given to post arrives, then that this rank leaves."""
        until = time.monotonic() + FAREWELL_S
        carrier.tell(everywhere=True)
        while not carrier.idle and time.monotonic() < until:
            carrier.carry(until, _STEP_S)

    def broke(self, culprit: int, error: CollectiveError) -> None:
        """Tell the engine, and the other ranks as far as they can be reached."""
        self.slab.fail(culprit, str(error), error.exit_status)
        if culprit >= 0:
            self.slab.blame(culprit)
        if bus.arrive(self.slab.arrivals):
            futex_wake(self.slab.arrivals)
        self.carrier.last_words(culprit)


def default_nap_s(world: int) -> float:
    """Where ranks share CPUs a poller that spins holds up whom it waits for."""
    enough = len(os.sched_getaffinity(0)) >= 2 * world
    return NAP_S if enough else 0.0


def share(gbps: float, layout: Layout) -> float:
    """What one queue pair may take of a port of `gbps` when all peers send at once, with a margin,
    without which switches drop and all wait for retries. 0 for a port that does not tell."""
    return gbps / ((layout.world - 1) * layout.lanes) * MARGIN


def picoseconds(gbps: float) -> int:
    """A byte takes at this rate; 0 for no limit."""
    return round(8e3 / gbps) if gbps else 0


class Watch:
    """Whether the other ranks live, by what they say of themselves in the slab."""

    def __init__(self, slab: BusSlab) -> None:
        self._slab = slab
        self._limit_s = -1.0
        self._patience: dict[int, Patience] = {}
        self.culprit = -1

    def look(self) -> None:
        """To be called every LOOK_S. Raises PeerSilentError."""
        slab = self._slab
        if slab.silent_s != self._limit_s:
            self._limit_s = slab.silent_s
            limits = Limits(self._limit_s or math.inf, math.inf)
            self._patience = {rank: Patience(slab, limits, "the bus") for rank in range(slab.world)}
        for rank, patience in self._patience.items():
            if rank != slab.rank and slab.pid(rank) and not slab.left(rank):
                try:
                    patience.look(rank)
                except CollectiveError:
                    self.culprit = rank
                    raise
