"""All ranks of a world on this host, each a thread, driven over one prompt in step."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dgpp.errors import ConfigError
from dgpp.net.choose import open_collective
from dgpp.net.collective import Collective
from dgpp.net.errors import CollectiveError
from dgpp.net.slab import create_slab
from dgpp.net.watch import RENDEZVOUS_S

T = TypeVar("T")


def device_of(rank: int, backend: str, devices: tuple[int, ...] = ()) -> int:
    """The GPU of a rank: of `devices` in turn, else of all; several share one where there are fewer
    GPUs than ranks."""
    if backend != "cuda":
        return 0
    if devices:
        return devices[rank % len(devices)]
    from kernels_numba.gpu.device import device_count

    return rank % max(1, device_count())


def run_world(
    world: int,
    rank_of: Callable[[int, Collective | None], T],
    backend: str = "cpu",
    devices: tuple[int, ...] = (),
) -> list[T]:
    """What `rank_of(rank, its collective)` returns on every rank, whose GPUs are `devices` as
    `device_of` has it; no collective for a world of 1.

    Raises the first error that is not another rank's end.
    """
    if world == 1:
        return [rank_of(0, None)]
    _require_threads()
    # Loading a kernel lazily waits for all that runs in the process, and what runs may be a kernel
    # that waits for the rank which is loading. Streams that share one of the few connections to a
    # device wait for one another as well.
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    fd = create_slab(world)

    def run(rank: int) -> T:
        device = device_of(rank, backend, devices)
        collective = open_collective("auto", backend, device, fd, rank, world, RENDEZVOUS_S)
        try:
            return rank_of(rank, collective)
        finally:
            collective.close()

    try:
        with ThreadPoolExecutor(world, thread_name_prefix="rank") as pool:
            jobs = [pool.submit(run, rank) for rank in range(world)]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, CollectiveError)):
            raise error
        return [job.result() for job in jobs]
    finally:
        os.close(fd)


def _require_threads() -> None:
    """Kernels of several threads at once need one of Numba's layers that allows it."""
    layers = ("numba.np.ufunc.omppool", "numba.np.ufunc.tbbpool")
    if not any(importlib.util.find_spec(layer) for layer in layers):
        raise ConfigError("--world: ranks that are threads need GNU OpenMP (libgomp) or tbb")
