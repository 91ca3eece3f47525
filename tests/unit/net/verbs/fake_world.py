"""A world of ranks in one process: each with its slab, mesh and carrier over one fake network."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from fake_verbs import Fabric, Faults
from ranks import SMALL

from dgpp.net.errors import CollectiveError
from dgpp.net.verbs.carrier import Carrier
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.mesh import Mesh
from dgpp.net.verbs.slab import BusSlab, State, create_bus
from dgpp.net.watch import LOOK_S, Limits

QUICK = Limits(silent_s=1.0, late_s=60.0)


class World:
    """Connected ranks, each an engine's end and a carrier; `kill` takes a rank from the network."""

    def __init__(self, world, lanes=2, geometry=SMALL, faults=Faults(), seed=1, **options):  # noqa: B008
        self.random = random.Random(seed)
        self.fabric = Fabric(self.random.randrange, faults)
        self.layout = Layout(geometry, lanes, world)
        self.files = [create_bus(self.layout) for _ in range(world)]
        self.slabs = [BusSlab(files, rank, self.layout) for rank, files in enumerate(self.files)]
        self.ports = [
            [self.fabric.port(f"r{rank}l{lane}") for lane in range(lanes)] for rank in range(world)
        ]
        self.meshes = [
            Mesh(ports, rank, self.layout, self.slabs[rank].address)
            for rank, ports in enumerate(self.ports)
        ]
        table = [mesh.frame() for mesh in self.meshes]
        for mesh in self.meshes:
            mesh.connect(table)
        self.carriers = [Carrier(*pair) for pair in zip(self.meshes, self.slabs, strict=True)]
        self.dead: set[int] = set()
        options = {"serving": QUICK} | options
        self.ranks = [
            VerbsCollective(files, rank, self.layout, **options)
            for rank, files in enumerate(self.files)
        ]

    def kill(self, rank: int) -> None:
        self.dead.add(rank)
        for port in self.ports[rank]:
            self.fabric.kill(port.name)

    def carry(self, rank: int) -> None:
        """What the poller of a rank does once."""
        if rank in self.dead or self.slabs[rank].state is State.FAILED:
            return
        try:
            self.carriers[rank].carry()
        except CollectiveError as error:
            self.slabs[rank].fail(self.carriers[rank].culprit, str(error), error.exit_status)
            self.carriers[rank].wake_engine()

    def tell(self) -> None:
        """What pollers do at every look."""
        for rank, carrier in enumerate(self.carriers):
            if rank not in self.dead:
                self.slabs[rank].poller_beat()
                carrier.tell()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        for mesh, slab, files in zip(self.meshes, self.slabs, self.files, strict=True):
            mesh.close()
            slab.close()
            files.close()
        for ports in self.ports:
            for port in ports:
                port.close()


class LiveWorld(World):
    """Its network and pollers run in one thread, its ranks each in their own."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()
        self.pool = ThreadPoolExecutor(len(self.ranks))
        for slab in self.slabs:
            slab.poller_beat()
            slab.state = State.JOINED
        self.run(lambda rank: rank.join(30))
        for rank in self.ranks:
            rank.serve()

    def run(self, function):
        return [future.result(60) for future in self.submit(function)]

    def submit(self, function):
        return [self.pool.submit(function, rank) for rank in self.ranks]

    def _carry(self) -> None:
        due = 0.0
        while not self._stop.is_set():
            if time.monotonic() > due:
                due = time.monotonic() + LOOK_S
                self.tell()
            for rank in range(len(self.ranks)):
                self.carry(rank)
            if not self.fabric.step():
                time.sleep(0.0002)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.pool.shutdown()
        super().close()


@contextmanager
def world_of(*arguments, kind=World, **options) -> Iterator[World]:
    made = kind(*arguments, **options)
    try:
        yield made
    finally:
        made.close()
