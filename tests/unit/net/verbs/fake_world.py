"""A world of ranks in one process: each with a mesh over fake adapters of one network."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from fake_verbs import Fabric, Faults
from ranks import SMALL

from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.mesh import Mesh


class World:
    """`ranks` connected meshes; `kill` takes both adapters of a rank from the network."""

    def __init__(self, world, lanes=2, geometry=SMALL, faults=Faults(), seed=1):  # noqa: B008
        self.random = random.Random(seed)
        self.fabric = Fabric(self.random.randrange, faults)
        size = Layout(geometry, lanes, world).bytes
        self.ports = [
            [self.fabric.port(f"r{rank}l{lane}") for lane in range(lanes)] for rank in range(world)
        ]
        self.ranks = [
            Mesh(ports, rank, world, geometry, np.zeros(size, np.uint8))
            for rank, ports in enumerate(self.ports)
        ]
        table = [mesh.frame() for mesh in self.ranks]
        for mesh in self.ranks:
            mesh.connect(table)

    def kill(self, rank: int) -> None:
        for port in self.ports[rank]:
            self.fabric.kill(port.name)

    def close(self) -> None:
        for mesh in self.ranks:
            mesh.close()
        for ports in self.ports:
            for port in ports:
                port.close()


@contextmanager
def world_of(*arguments, **options) -> Iterator[World]:
    made = World(*arguments, **options)
    try:
        yield made
    finally:
        made.close()
