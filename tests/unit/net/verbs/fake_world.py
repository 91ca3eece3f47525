"""A world of ranks in one process: each an engine's end and a poller, over one fake network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from fake_verbs import Fabric, Faults
from ranks import SMALL

from dgpp.net.errors import CollectiveError
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.poller import Poller
from dgpp.net.verbs.slab import create_bus
from dgpp.net.watch import LOOK_S, Limits

QUICK = Limits(silent_s=1.0, late_s=60.0)


class World:
    """Connected ranks. `kill` takes a rank from the network, its poller too."""

    def __init__(
        self, world, lanes=2, geometry=SMALL, faults=Faults(), seed=1, options=None, **polling  # noqa: B008
    ):  # fmt: skip
        self.fabric = Fabric(faults, seed)
        self.layout = Layout(geometry, lanes, world)
        self.files = [create_bus(self.layout) for _ in range(world)]
        self.ports = [
            [self.fabric.port(f"r{rank}l{lane}") for lane in range(lanes)] for rank in range(world)
        ]
        self.pollers = [
            Poller(files, rank, self.layout, ports, **polling)
            for rank, (files, ports) in enumerate(zip(self.files, self.ports, strict=True))
        ]
        table = [poller.frame() for poller in self.pollers]
        for poller in self.pollers:
            poller.connect(table)
        for poller in self.pollers:
            poller.opened()
        self.dead: set[int] = set()
        self.ranks = [
            VerbsCollective(files, rank, self.layout, **({"serving": QUICK} | (options or {})))
            for rank, files in enumerate(self.files)
        ]

    def kill(self, rank: int) -> None:
        self.dead.add(rank)
        for port in self.ports[rank]:
            self.fabric.kill(port.name)

    def turn(self, rank: int) -> bool:
        """What the poller of a rank does once; whether there was anything to do."""
        if rank in self.dead:
            return False
        poller = self.pollers[rank]
        try:
            return poller.carrier.turn()
        except CollectiveError as error:
            self.dead.add(rank)
            poller.broke(poller.carrier.culprit, error)
            return True

    def tell(self) -> None:
        """What pollers do at every look."""
        for rank, poller in enumerate(self.pollers):
            if rank not in self.dead:
                poller.slab.poller_beat()
                poller.carrier.tell()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        for made in (*self.pollers, *self.files):
            made.close()
        for ports in self.ports:
            for port in ports:
                port.close()


class LiveWorld(World):
    """Its pollers take turns in one thread while it is `wanted`, its engines run each in their
    own. They have met, unless something else is to use their channels."""

    joins = True

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.stopped, self.wanted = threading.Event(), threading.Event()
        self.wanted.set()
        self.pool = ThreadPoolExecutor(2 * len(self.ranks))
        self._begin()
        if self.joins:
            self.run(lambda rank: rank.join(30))
            for rank in self.ranks:
                rank.serve()

    def run(self, function):
        return [future.result(60) for future in self.submit(function)]

    def submit(self, function):
        return [self.pool.submit(function, rank) for rank in self.ranks]

    def errors(self, function) -> list[BaseException | None]:
        return [future.exception(60) for future in self.submit(function)]

    def _begin(self) -> None:
        self.carrying = [self.pool.submit(self._carry)]

    def ended(self, carrying) -> None:
        """What carried has ended; nothing broke it."""
        carrying.result(30)

    def _carry(self) -> None:
        due = 0.0
        while not self.stopped.is_set():
            self.wanted.wait()
            if time.monotonic() > due:
                due = time.monotonic() + LOOK_S
                self.tell()
            worked = [self.turn(rank) for rank in range(len(self.ranks))]
            if not any(worked):
                time.sleep(0.0001)

    def close(self) -> None:
        self.stopped.set()
        self.wanted.set()
        for carrying in self.carrying:
            self.ended(carrying)
        self.pool.shutdown()
        super().close()


class PolledWorld(LiveWorld):
    """Its pollers run as they do in service, each in a thread."""

    def _begin(self) -> None:
        self.carrying = [self.pool.submit(poller.run) for poller in self.pollers]

    def ended(self, carrying) -> None:
        broke = carrying.exception(30)
        assert broke is None or isinstance(broke, CollectiveError), broke

    def close(self) -> None:
        self.stopped.set()
        for poller in self.pollers:
            poller.stop()
        super().close()


@contextmanager
def world_of(*arguments, kind=LiveWorld, **options) -> Iterator[World]:
    made = kind(*arguments, **options)
    try:
        yield made
    finally:
        made.close()
