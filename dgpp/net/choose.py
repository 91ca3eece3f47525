"""Which collectives the ranks of a world use, opened and met: what engine.collective decides."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from dgpp.errors import DgppError
from dgpp.net.collective import Collective
from dgpp.net.paths import Route, path_of
from dgpp.net.shm import ShmCollective
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.slab import BusFiles
from kernels_numba.cpu.memory import Block

if TYPE_CHECKING:
    from dgpp.net.verbs.collective import VerbsCollective

_log = logging.getLogger("dgpp.net")

PROBES = 50
PROBE_WIDTH = 5120


def open_collective(
    wanted: str, backend: str, device: int, slab_fd: int, rank: int, world: int, timeout_s: float
) -> Collective:
    """This rank's end of the world that meets in the slab `slab_fd`, joined within `timeout_s`
    (engine.rendezvous_timeout_ms); every rank calls it. `wanted` is engine.collective, `device` a
    GPU's number.

    Raises ConfigError or CollectiveError. What was chosen and the host's latency are logged.
    """
    devices = path_of(wanted, backend, apart=False) is Route.DEVICES
    host = ShmCollective(slab_fd, rank, world)
    try:
        host.join(timeout_s)
        seconds = probe_latency(host)
        path: Collective = _of_devices(wanted, host, device) if devices else host
    except DgppError:
        host.close()
        raise
    _log.info(
        "collective %s: rank %d of %d, the host's sum of %d KiB takes %.1f us",
        path.name, rank, world, 4 * PROBE_WIDTH >> 10, seconds * 1e6,
    )  # fmt: skip
    return path


def open_bus(
    wanted: str, backend: str, files: BusFiles, rank: int, layout: Layout, timeout_s: float
) -> Collective:
    """This rank's end of the RoCE bus whose poller shares `files`, joined within `timeout_s`; every
    rank calls it. Where `backend` computes on a GPU, sums are the device's: over the bus too, or
    through NCCL where `wanted`. Raises CollectiveError. What was chosen and the latency of the
    host's sums are logged."""
    from dgpp.net.verbs.collective import VerbsCollective

    bus = VerbsCollective(files, rank, layout)
    try:
        bus.join(timeout_s)
        seconds = probe_latency(bus)
    except DgppError:
        bus.close()
        raise
    path: Collective = _of_devices_apart(wanted, bus) if backend == "cuda" else bus
    _log.info(
        "collective %s: rank %d of %d over %d lanes, the host's sum of %d KiB takes %.1f us",
        path.name, rank, layout.world, layout.lanes, 4 * PROBE_WIDTH >> 10, seconds * 1e6,
    )  # fmt: skip
    return path


def _of_devices(wanted: str, host: ShmCollective, device: int) -> Collective:
    """Peer-to-peer where every device reaches every other one, else NCCL: the same on all ranks."""
    from dgpp.net.nccl import open_nccl
    from dgpp.net.p2p import open_p2p
    from kernels_numba.gpu.device import reaches

    devices = [int(told[0]) for told in host.all_gather(np.array([device]))]
    able = wanted == "auto" and reaches(device, devices)
    everybody = bool(host.all_gather(np.array([able])).all())
    return open_p2p(host) if everybody else open_nccl(host)


def _of_devices_apart(wanted: str, bus: VerbsCollective) -> Collective:
    """What all ranks have been told to take; the host's part is the bus's."""
    from dgpp.net.nccl import open_nccl
    from dgpp.net.verbs.devices import open_devices

    return open_nccl(bus) if wanted == "nccl" else open_devices(bus)


def probe_latency(collective: Collective) -> float:
    """Median seconds of a sum of one row; every rank calls it."""
    part, out = (Block(np.zeros((1, PROBE_WIDTH), np.float32)) for _ in range(2))
    times = []
    for _ in range(PROBES):
        began = time.perf_counter()
        collective.all_reduce(1, part, out)
        times.append(time.perf_counter() - began)
    return float(np.median(times))
