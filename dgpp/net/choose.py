"""Which collectives the ranks of a world use, opened and met: what engine.collective decides."""

from __future__ import annotations

import logging
import time

import numpy as np

from dgpp.config.engine_settings import EngineSettings
from dgpp.errors import ConfigError
from dgpp.net.collective import Collective
from dgpp.net.shm import ShmCollective
from kernels_numba.cpu.memory import Block

_log = logging.getLogger("dgpp.net")

PROBES = 50
PROBE_WIDTH = 5120


def require_served(engine: EngineSettings, backend: str) -> None:
    """Raises ConfigError where engine.collective cannot serve `backend`."""
    wanted = engine.collective
    if wanted == "verbs":
        raise ConfigError("not supported yet: engine.collective verbs")
    if wanted == "nccl" and backend != "cuda":
        raise ConfigError(f"engine.collective: nccl is of GPUs, the backend is {backend}")
    if wanted == "shm" and backend == "cuda":
        raise ConfigError(
            "engine.collective: shm sums in the host's memory, which a GPU's graphs cannot wait "
            "for; leave it at auto, or take nccl"
        )


def open_collective(
    engine: EngineSettings, backend: str, slab_fd: int, rank: int, world: int
) -> Collective:
    """This rank's end of the world that meets in the slab `slab_fd`, joined; every rank calls it.

    Raises ConfigError or CollectiveError. What was chosen and its latency are logged.
    """
    require_served(engine, backend)
    host = ShmCollective(slab_fd, rank, world)
    host.join(engine.rendezvous_timeout_ms / 1e3)
    seconds = probe_latency(host)
    _log.info(
        "collective %s: rank %d of %d, an all-reduce of %d KiB takes %.1f us",
        host.name, rank, world, 4 * PROBE_WIDTH >> 10, seconds * 1e6,
    )  # fmt: skip
    return host


def probe_latency(collective: ShmCollective) -> float:
    """Median seconds of a sum of one row; every rank calls it."""
    part, out = (Block(np.zeros((1, PROBE_WIDTH), np.float32)) for _ in range(2))
    times = []
    for _ in range(PROBES):
        began = time.perf_counter()
        collective.all_reduce(1, part, out)
        times.append(time.perf_counter() - began)
    return float(np.median(times))
