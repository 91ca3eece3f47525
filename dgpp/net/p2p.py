"""GPUs of one host that write to and read one another's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgpp.net.device import DeviceCollective, DeviceRanks, Host
from kernels_numba.backend import Backend
from kernels_numba.gpu.ranks import RankMemory


def open_p2p(host: Host) -> DeviceCollective:
    """Sums by kernels that push small parts and pull large ones."""
    return DeviceCollective("p2p", host, _open)


def _open(host: Host, backend: Backend, width: int) -> DeviceRanks:
    device: Any = backend
    memory = device.open_ranks(
        lambda kernels, gpu, rows: RankMemory(
            kernels, gpu.index, host.rank, host.world, rows, width
        )
    )
    tickets = host.all_gather(np.frombuffer(memory.ticket(), np.uint8))
    memory.connect([ticket.tobytes() for ticket in tickets])
    ranks: DeviceRanks = memory
    return ranks
