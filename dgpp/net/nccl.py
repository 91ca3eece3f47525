"""GPUs that NCCL connects, on one host or on any network it knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from dgpp.net.device import DeviceCollective, DeviceRanks, Host
from kernels_numba.backend import Backend
from kernels_numba.gpu.nccl import NcclRanks, unique_id

ID_BYTES = 128


def open_nccl(host: Host) -> DeviceCollective:
    """Parts are gathered by NCCL and summed in rank order by a kernel."""
    return DeviceCollective("nccl", host, _open)


def _open(host: Host, backend: Backend, width: int) -> DeviceRanks:
    device: Any = backend
    own = unique_id() if host.rank == 0 else bytes(ID_BYTES)
    told = host.all_gather(np.frombuffer(own, np.uint8))[0].tobytes()
    ranks: DeviceRanks = device.open_ranks(
        lambda kernels, _gpu, rows: NcclRanks(kernels, told, host.rank, host.world, rows, width)
    )
    return ranks
