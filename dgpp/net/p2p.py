"""GPUs of one host that write to and read one another's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgpp.net.device import DeviceCollective, DeviceRanks
from dgpp.net.shm import ShmCollective
from kernels_numba.backend import Backend


def open_p2p(host: ShmCollective) -> DeviceCollective:
    """Sums by kernels that push small parts and pull large ones."""
    return DeviceCollective("p2p", host, _open)


def _open(host: ShmCollective, backend: Backend, width: int) -> DeviceRanks:
    device: Any = backend
    memory = device.rank_memory(host.rank, host.world, width)
    tickets = host.all_gather(np.frombuffer(memory.ticket(), np.uint8))
    memory.connect([ticket.tobytes() for ticket in tickets])
    ranks: DeviceRanks = memory
    return ranks
