"""All ranks of a world on this host, each a thread, driven over one prompt in step."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dgpp.errors import ConfigError
from dgpp.net.collective import Collective
from dgpp.net.errors import CollectiveError
from dgpp.net.shm import ShmCollective
from dgpp.net.slab import create_slab

T = TypeVar("T")


def run_world(world: int, rank_of: Callable[[int, Collective | None], T]) -> list[T]:
    """What `rank_of(rank, its collective)` returns on every rank; no collective for a world of 1.

    Raises the first error that is not another rank's end.
    """
    if world == 1:
        return [rank_of(0, None)]
    _require_threads()
    fd = create_slab(world)
    try:
        with ThreadPoolExecutor(world, thread_name_prefix="rank") as pool:
            jobs = [pool.submit(_run, rank_of, fd, rank, world) for rank in range(world)]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, CollectiveError)):
            raise error
        return [job.result() for job in jobs]
    finally:
        os.close(fd)


def _run(rank_of: Callable[[int, Collective | None], T], fd: int, rank: int, world: int) -> T:
    collective = ShmCollective(fd, rank, world)
    try:
        collective.join()
        return rank_of(rank, collective)
    finally:
        collective.close()


def _require_threads() -> None:
    """Kernels of several threads at once need one of Numba's layers that allows it."""
    layers = ("numba.np.ufunc.omppool", "numba.np.ufunc.tbbpool")
    if not any(importlib.util.find_spec(layer) for layer in layers):
        raise ConfigError("--world: ranks that are threads need GNU OpenMP (libgomp) or tbb")
