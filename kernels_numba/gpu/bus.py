"""A rank's collectives over the RoCE bus from its device, through a slab that a poller carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kernels_numba.cpu.bus import SLOT_BYTES, SLOTS
from kernels_numba.gpu.board import Board, Tally
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor
from kernels_numba.gpu.source import BUS

THREADS, ITEMS = 1024, 8
MOST_WORDS = THREADS * ITEMS
"""Of a message, 8 bytes each: what the registers of one block hold."""
MOST_BLOCKS = 32
"""Messages that one launch sends to each peer at most."""
_MAPPED = 2
"""cudaHostRegisterMapped."""
_COUNTS = 2
"""Of the device, before those of each lane."""

Tags: TypeAlias = Callable[[bool, int], int]
"""(whether it is a gather, bytes) → what a collective's messages are marked with."""


def register_slab(address: int, length: int) -> None:
    """Let the device read and write host memory, mapped, at the same address, for as long as the
    process lives. Raises CudaError."""
    runtime = load_cupy().cuda.runtime
    try:
        runtime.hostRegister(address, length, _MAPPED)
    except runtime.CUDARuntimeError as error:
        raise CudaError(f"the bus's slab of {length} bytes cannot be pinned: {error}") from error


class BusChannels:
    """The device's ends: `records` are its channels as int64 [world, lanes, words], this rank's
    unused. From here on the device keeps their counts, and nothing else may use these channels."""

    def __init__(
        self, kernels: Kernels, rank: int, records: npt.NDArray[np.int64], tags: Tags
    ) -> None:
        cupy = load_cupy()
        self._kernels, self._tags = kernels, tags
        self._rank, (self._world, self._lanes, _words) = rank, records.shape
        others = records[[peer for peer in range(self._world) if peer != rank]]
        self._share = min(MOST_WORDS, int(others[..., SLOT_BYTES].min()) // 8)
        self._blocks = min(MOST_BLOCKS, self._lanes * int(others[..., SLOTS].min()))
        self._records = cupy.asarray(records)
        self._counts = cupy.zeros(_COUNTS + self._lanes, cupy.uint64)
        self.board = Board()
        kernels.prepare([BUS])

    def launch(
        self,
        name: str,
        before: tuple[int, ...],
        words: int,
        after: tuple[int, ...],
        *,
        gather: bool,
    ) -> None:
        """Enqueue `name` for `words` words of each rank, as often as slots and registers ask."""
        most = self._blocks * self._share
        pointers = int(self._records.data.ptr), int(self._counts.data.ptr)
        for begin in range(0, words, most):
            end = min(begin + most, words)
            blocks = -(-(end - begin) // self._share)
            share = -(-(end - begin) // blocks)
            self._kernels.launch(
                BUS, name, (blocks,), THREADS,
                (*before, begin, end, share, *after, self._rank, self._world, self._lanes,
                 *pointers, self._tags(gather, 8 * (end - begin)), *self.board.addresses),
                early=True,
            )  # fmt: skip


class BusRanks:
    """As `kernels_numba.gpu.ranks.RankMemory`, through `channels`.

    `partial` is what the sums of up to `capacity` rows of `width` values are of, an even number.
    Kernels are enqueued on the current stream and can be recorded in a graph. Raises CudaError.
    """

    tells = True

    def __init__(self, channels: BusChannels, capacity: int, width: int) -> None:
        if width % 2:
            raise CudaError(f"rows of {width} values: sums over the bus take whole pairs")
        self._channels, self._width = channels, width
        self.partial = CudaTensor(capacity, width, wide=True)

    def limit(self, seconds: float) -> None:
        """How long a kernel waits for another rank."""
        self._channels.board.limit(seconds)

    def abort(self) -> None:
        """Let kernels that wait end at once, with rubbish; so do all later ones. None of it goes to
        other ranks."""
        self._channels.board.abort()

    def failed(self) -> int:
        """The rank that a kernel gave up at, -1 for none."""
        return self._channels.board.failed()

    def other(self) -> tuple[int, int]:
        """Number and tag of the message that came where this rank's was due, (0, 0) for none."""
        return self._channels.board.other()

    def tally(self) -> Tally:
        """What was done as far as the last gather tells."""
        return self._channels.board.tally()

    def all_reduce(self, count: int, out: CudaTensor, *, add: bool) -> None:
        """out[r] = Σ over ranks of partial[r] (+ out[r]) for `count` rows."""
        if not out.wide:
            raise ValueError("sums over ranks go to float32 rows")
        partial, width = self.partial, self._width
        self._channels.launch(
            "bus_reduce", (partial.pointer, partial.stride, width), count * width // 2,
            (out.pointer, out.stride, int(add)), gather=False,
        )  # fmt: skip

    def gather(self, source: int, words: int, out: int) -> None:
        """out [world][words] = the 64-bit words at the device address `source` of every rank."""
        self._channels.launch("bus_gather", (source, words), words, (out,), gather=True)
