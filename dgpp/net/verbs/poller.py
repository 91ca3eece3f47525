"""A rank's poller: brings the bus up and carries what the engine puts into the slab."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Sequence

import msgspec

from dgpp.errors import DgppError
from dgpp.net.errors import CollectiveError
from dgpp.net.verbs.carrier import Carrier
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.library import Port
from dgpp.net.verbs.mesh import Mesh
from dgpp.net.verbs.rendezvous import Gathering, Joining
from dgpp.net.verbs.slab import BusFiles, BusSlab, State
from dgpp.net.verbs.table import Party
from dgpp.net.watch import LOOK_S, Limits, Patience

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
    `stop` from any, then `close`."""

    def __init__(self, files: BusFiles, rank: int, layout: Layout, ports: Sequence[Port]) -> None:
        self.rank, self.layout = rank, layout
        self.slab = BusSlab(files, rank, layout)
        self._mesh = Mesh(ports, rank, layout, self.slab.address)
        self._carrier: Carrier | None = None
        self._stopped = False

    async def join(self, meeting: Meeting, listener: socket.socket | None = None) -> None:
        """Meet the other ranks' pollers; `listener` is rank 0's, which listens at ports.fabric.
        Raises JoinError or BusError, which the engine is told too."""
        try:
            await self._join(meeting, listener)
        except DgppError as error:
            self.slab.fail(-1, str(error), 1)
            raise
        self.slab.poller_beat()
        self.slab.state = State.JOINED

    async def _join(self, meeting: Meeting, listener: socket.socket | None) -> None:
        party = Party(meeting.version, meeting.token, self._mesh.frame())
        side: Gathering | Joining
        if self.rank == 0:
            assert listener is not None
            side = Gathering(listener, party, meeting.timeout_s)
        else:
            side = Joining(meeting.host, meeting.port, party, meeting.timeout_s)
        try:
            self._mesh.connect(
                await (side.gather() if isinstance(side, Gathering) else side.join())
            )
            self._carrier = Carrier(self._mesh, self.slab)
            await side.ready()
        finally:
            await side.close()

    def run(self) -> None:
        """Carry until the engine is done or `stop` is called. Raises CollectiveError where the bus
        broke, which the engine is told too."""
        assert self._carrier is not None, "joined first"
        watch = Watch(self.slab)
        due = 0.0
        try:
            while not (self._stopped or self.slab.asked_to_stop):
                self._carrier.carry()
                if time.monotonic() >= due:
                    due = time.monotonic() + LOOK_S
                    self.slab.poller_beat()
                    self._carrier.tell()
                    watch.look()
            self._farewell(self._carrier)
            self.slab.state = State.ENDED
        except CollectiveError as error:
            culprit = self._carrier.culprit if watch.culprit < 0 else watch.culprit
            self._break(self._carrier, culprit, error)
            raise

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._mesh.close()
        self.slab.close()

    def _farewell(self, carrier: Carrier) -> None:
        """All that was given to post arrives, then that this rank leaves."""
        until = time.monotonic() + FAREWELL_S
        carrier.tell()
        while not carrier.idle and time.monotonic() < until:
            carrier.carry()

    def _break(self, carrier: Carrier, culprit: int, error: CollectiveError) -> None:
        self.slab.fail(culprit, str(error), error.exit_status)
        if culprit >= 0:
            self.slab.blame(culprit)
        carrier.wake_engine()
        carrier.last_words(culprit)


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
