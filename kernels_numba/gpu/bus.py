"""A rank's sums over the RoCE bus from the device, through a slab that its poller carries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor
from kernels_numba.gpu.source import BUS

THREADS, ITEMS = 1024, 8
MOST_BYTES = 8 * THREADS * ITEMS
"""Of a message: what the registers of one block hold."""
LIMIT_S = 60.0
"""How long a kernel waits until somebody sets a limit."""
CHANNEL_SLOT_BYTES = 8
"""The word of a channel's record that says how much a slot holds (`kernels_numba.cpu.bus`)."""
_ABORT, _FAILED, _LIMIT_NS = range(3)
_OTHER_GENERATION, _OTHER_TAG = 6, 7
_MAPPED = 2
"""cudaHostRegisterMapped."""


def register_slab(address: int, length: int) -> None:
    """Let the device read and write host memory, mapped, at the same address. Raises CudaError."""
    runtime = load_cupy().cuda.runtime
    try:
        runtime.hostRegister(address, length, _MAPPED)
    except runtime.CUDARuntimeError as error:
        raise CudaError(f"the bus's slab of {length} bytes cannot be pinned: {error}") from error


class BusSums:
    """`records` are the channels of the latency pool as int64 [world, words], this rank's unused;
    from here on the device keeps their counts, and nothing else may use these channels.

    Kernels are enqueued on the current stream and can be recorded in a graph.
    """

    tells = True

    def __init__(self, kernels: Kernels, rank: int, records: npt.NDArray[np.int64]) -> None:
        cupy = load_cupy()
        self._kernels, self._rank, self._world = kernels, rank, len(records)
        others = [peer for peer in range(self._world) if peer != rank]
        self._most = min(MOST_BYTES, int(records[others, CHANNEL_SLOT_BYTES].min()))
        self._channels = cupy.asarray(records)
        self._counter = cupy.zeros(1, cupy.uint64)
        self._host: npt.NDArray[np.uint64] = np.frombuffer(
            cupy.cuda.alloc_pinned_memory(64), np.uint64, 8
        )
        self._host[:] = 0
        self.limit(LIMIT_S)
        kernels.prepare([BUS])

    def limit(self, seconds: float) -> None:
        """How long a kernel waits for another rank."""
        self._host[_LIMIT_NS] = int(seconds * 1e9)

    def abort(self) -> None:
        """Let kernels that wait end at once, with rubbish; so do all later ones."""
        self._host[_ABORT] = 1

    def failed(self) -> int:
        """The rank that a kernel gave up at, -1 for none."""
        return int(self._host[_FAILED]) - 1

    def other(self) -> tuple[int, int]:
        """Number and tag of the message that came where this rank's was due, (0, 0) for none."""
        return int(self._host[_OTHER_GENERATION]), int(self._host[_OTHER_TAG])

    def all_reduce(
        self, count: int, partial: CudaTensor, out: CudaTensor, width: int, tag: int, *, add: bool
    ) -> None:
        """out[r] = Σ over ranks of partial[r] (+ out[r]) for `count` float32 rows of `width`
        values. `tag` says to the other ranks what this is. Raises CudaError for rows that one
        message does not hold."""
        size = 4 * count * width
        if width % 2 or not 0 < size <= self._most:
            raise CudaError(
                f"{count} rows of {width} values: one message takes up to {self._most} bytes of "
                "rows of an even width"
            )
        pointers: Any = (self._channels.data.ptr, self._counter.data.ptr)
        self._kernels.launch(
            BUS, "bus_reduce", (1,), THREADS,
            (partial.pointer, partial.stride, count, width, out.pointer, out.stride, int(add),
             self._rank, self._world, *map(int, pointers), tag, int(self._host.ctypes.data)),
            early=True,
        )  # fmt: skip
