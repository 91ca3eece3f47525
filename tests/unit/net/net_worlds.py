"""Worlds of ranks as threads of one process, over a real slab."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dgpp.net.shm import ShmCollective
from dgpp.net.slab import create_slab
from dgpp.net.watch import Limits

PATIENT = Limits(silent_s=30.0, late_s=60.0)
SLOT = 4096


class World:
    """`run` calls a function on every rank at once and returns their results in rank order."""

    def __init__(self, world: int, **options: Any) -> None:
        options = {"slot_bytes": SLOT, "serving": PATIENT} | options
        self.fd = create_slab(world, options["slot_bytes"])
        self.ranks = [ShmCollective(self.fd, rank, world, **options) for rank in range(world)]
        self.pool = ThreadPoolExecutor(world)
        self.run(lambda rank: rank.join(30))
        for rank in self.ranks:
            rank.serve()

    def run(self, function: Callable[[ShmCollective], Any]) -> list[Any]:
        return [future.result(60) for future in self.submit(function)]

    def submit(self, function: Callable[[ShmCollective], Any]) -> list[Any]:
        return [self.pool.submit(function, rank) for rank in self.ranks]

    def errors(self, function: Callable[[ShmCollective], Any]) -> list[BaseException | None]:
        return [future.exception(60) for future in self.submit(function)]

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
        self.pool.shutdown()
        os.close(self.fd)


@contextmanager
def world_of(world: int, **options: Any) -> Iterator[World]:
    made = World(world, **options)
    try:
        yield made
    finally:
        made.close()
