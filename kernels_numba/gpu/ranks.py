"""Memory that the GPUs of one host write to and read from one another, and sums through it."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels_numba.gpu.board import Board, Tally
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor, padded
from kernels_numba.gpu.source import COLLECTIVE

MOST_RANKS = 8
SUM_STEP = 4
"""Values that a row of what is summed has a multiple of."""
THREADS, BLOCKS, LARGE_BLOCKS = 256, 64, 128
SMALL_ROWS = 64
"""Up to this many rows are pushed, more are pulled: a push sends twice the bytes and waits once."""
LINE_BYTES = 16
_TICKET = struct.Struct("<qqq64s")
_ALIGN = 2 << 20


def lines_of(width: int) -> int:
    """Lines that a rank pushes at most, each of two values."""
    return SMALL_ROWS * width // 2


def exchange_bytes(world: int, width: int) -> int:
    """What a rank of `world` holds to exchange rows of `width` values, beside their `partial`."""
    return 2 * world * (lines_of(width) * LINE_BYTES + LARGE_BLOCKS * 8)


class RankMemory:
    """One rank's part, and after `connect` the addresses of the others'.

    `partial` is what the sums of up to `capacity` rows of `width` values are of. Kernels are
    enqueued on the current stream and can be recorded in a graph.
    """

    tells = True

    def __init__(
        self, kernels: Kernels, device: int, rank: int, world: int, capacity: int, width: int
    ) -> None:
        if world > MOST_RANKS:
            raise CudaError(f"{world} ranks: at most {MOST_RANKS} GPUs read one another's memory")
        if width % SUM_STEP:
            raise CudaError(f"rows of {width} values: sums over GPUs take whole fours")
        cupy = load_cupy()
        self._kernels, self._device = kernels, device
        self._rank, self._world, self._width = rank, world, width
        self._lines = lines_of(width)
        self._flags = 2 * world * self._lines * LINE_BYTES
        self._data = -(-exchange_bytes(world, width) // 512) * 512
        size = -(-(self._data + 4 * capacity * padded(width)) // _ALIGN) * _ALIGN
        # A whole allocation of its own: others map it from its first byte.
        self._memory = cupy.cuda.memory.Memory(size)
        cupy.cuda.runtime.memset(self._memory.ptr, 0, size)
        self._base = int(self._memory.ptr)
        pointer = cupy.cuda.MemoryPointer(self._memory, self._data)
        self.partial = CudaTensor.over(pointer, capacity, width)
        # Numbers of the last pushed and the last pulled collective, and their tickets.
        self._counters = cupy.zeros(4, cupy.uint64)
        self._board = Board()
        self._bases: tuple[int, ...] = ()
        self._kernels.prepare([COLLECTIVE])

    def ticket(self) -> bytes:
        """What the other ranks need to reach this one's memory."""
        runtime = load_cupy().cuda.runtime
        runtime.deviceSynchronize()
        handle = runtime.ipcGetMemHandle(self._base)
        return _TICKET.pack(os.getpid(), self._device, self._base, bytes(handle))

    def connect(self, tickets: Sequence[bytes]) -> None:
        """Reach the memory of every rank, in rank order. Raises CudaError naming one that cannot
        be reached."""
        bases = []
        for rank, ticket in enumerate(tickets):
            process, device, base, handle = _TICKET.unpack(ticket)
            if rank == self._rank:
                bases.append(self._base)
            elif process == os.getpid():
                if device == self._device:
                    self._kernels.share_device()
                else:
                    _enable(device, rank)
                bases.append(base)
            else:
                bases.append(_open(handle, rank))
        self._bases = (*bases, *([0] * (MOST_RANKS - len(bases))))

    def limit(self, seconds: float) -> None:
        """How long a kernel waits for another rank."""
        self._board.limit(seconds)

    def abort(self) -> None:
        """Let kernels that wait end at once, with rubbish; so do all later ones. None of it goes to
        other ranks."""
        self._board.abort()

    def failed(self) -> int:
        """The rank that a kernel gave up waiting for, -1 for none."""
        return self._board.failed()

    def other(self) -> tuple[int, int]:
        """What comes carries no tag."""
        return 0, 0

    def tally(self) -> Tally:
        """What was done as far as the last gather tells."""
        return self._board.tally()

    def all_reduce(self, count: int, out: CudaTensor, *, add: bool) -> None:
        """out[r] = Σ over ranks of partial[r] (+ out[r]) for `count` rows."""
        if not out.wide:
            raise ValueError("sums over ranks go to float32 rows")
        if count == 0:
            return
        partial, items = self.partial, count * self._width // 4
        shape = (partial.stride, count, self._width, out.pointer, out.stride, int(add))
        if count <= SMALL_ROWS:
            self._launch(
                "reduce_small", min(BLOCKS, -(-items // THREADS)), (partial.pointer, *shape),
                self._lines, 0,
            )  # fmt: skip
        else:
            self._launch("reduce_large", LARGE_BLOCKS, (self._data, *shape), self._flags, 1)

    def gather(self, source: int, words: int, out: int) -> None:
        """out [world][words] = the 64-bit words at the device address `source` of every rank."""
        if words > self._lines:
            raise CudaError(f"{words} words exceed the {self._lines} that ranks exchange at once")
        blocks = min(BLOCKS, -(-words // THREADS))
        self._launch("gather_words", blocks, (source, words, out), self._lines, 0)

    def _launch(
        self, name: str, blocks: int, arguments: tuple[int, ...], place: int, kind: int
    ) -> None:
        counter = int(self._counters.data.ptr) + 16 * kind
        self._kernels.launch(
            COLLECTIVE, name, (blocks,), THREADS,
            (*arguments, self._rank, self._world, *self._bases, place, counter, counter + 8,
             *self._board.addresses),
            early=True,
        )  # fmt: skip


def _enable(device: int, rank: int) -> None:
    """Let this thread's device reach `device`'s memory."""
    runtime = load_cupy().cuda.runtime
    try:
        runtime.deviceEnablePeerAccess(device)
    except runtime.CUDARuntimeError as error:
        if "AlreadyEnabled" not in str(error):
            message = f"device {device} of rank {rank} cannot be reached: {error}"
            raise CudaError(message) from error


def _open(handle: bytes, rank: int) -> int:
    runtime = load_cupy().cuda.runtime
    try:
        return int(runtime.ipcOpenMemHandle(handle))
    except runtime.CUDARuntimeError as error:
        raise CudaError(f"the memory of rank {rank} cannot be mapped: {error}") from error


class CandidateMerge:
    """A picker's results on the device become those of the whole vocabulary, on every rank.

    `starts` are the first ids of the ranks' slices; `results` is the picker's buffer, log-sum-exps
    first, and `layout` the number of candidates and where values, ids, held and present begin.
    """

    def __init__(
        self,
        kernels: Kernels,
        ranks: Any,
        starts: Sequence[int],
        results: Any,
        layout: tuple[int, ...],
    ) -> None:
        cupy = load_cupy()
        self._kernels, self._ranks, self._results = kernels, ranks, results
        self._layout = layout
        self._world = len(starts)
        self._starts = cupy.asarray(np.array(starts, np.int32))
        self._bytes = int(results.nbytes)
        self._gathered = cupy.zeros(self._world * self._bytes // 8, cupy.uint64)

    def run(self, count: int) -> None:
        """Enqueue it for the first `count` rows."""
        gathered, results = int(self._gathered.data.ptr), int(self._results.data.ptr)
        self._ranks.gather(results, self._bytes // 8, gathered)
        self._kernels.launch(
            COLLECTIVE, "merge_candidates", (count,), THREADS,
            (gathered, self._bytes, self._world, *self._layout, int(self._starts.data.ptr),
             results),
            early=True,
        )  # fmt: skip
