"""Sums over GPUs through NCCL: gathered, then added here, since NCCL's own order is not fixed."""

from __future__ import annotations

import os
from typing import Any

from kernels_numba.gpu.board import Board, Tally
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor, padded
from kernels_numba.gpu.source import COLLECTIVE

THREADS = 256
MOST_BLOCKS = 1024
MOST_ROWS = 1024
"""Rows that are gathered at once."""
_UINT64, _FLOAT32 = 5, 7
"""NCCL's own codes."""


def _nccl() -> Any:
    # A program that uses NVLink multicast can leave a host's GPUs unusable when it dies.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise CudaError(f"NCCL cannot be loaded: {error}; pip install nvidia-nccl-cu13") from error
    if not getattr(nccl, "available", True):
        raise CudaError("NCCL is not installed: pip install nvidia-nccl-cu13")
    return nccl


def unique_id() -> bytes:
    """What rank 0 makes and every rank opens the world with."""
    told: bytes = _nccl().get_unique_id()
    return told


def gathered_bytes(world: int, width: int) -> int:
    """What a rank of `world` holds to sum rows of `width` values, beside their `partial`."""
    return 4 * world * MOST_ROWS * padded(width)


class NcclRanks:
    """As `kernels_numba.gpu.ranks.RankMemory`, on any network that NCCL knows."""

    tells = False

    def __init__(
        self, kernels: Kernels, identity: bytes, rank: int, world: int, capacity: int, width: int
    ) -> None:
        nccl = _nccl()
        try:
            self._world_of = nccl.NcclCommunicator(world, identity, rank)
        except nccl.NcclError as error:
            raise CudaError(f"NCCL does not connect the {world} ranks: {error}") from error
        self._kernels, self._world, self._width = kernels, world, width
        self.partial = CudaTensor(capacity, width, wide=True)
        cupy, rows = load_cupy(), min(MOST_ROWS, capacity)
        self._gathered = cupy.zeros((world, rows, self.partial.stride), cupy.float32)
        self._board = Board()
        self._gathers = self._gathered_bytes = 0
        self._kernels.prepare([COLLECTIVE])

    def limit(self, seconds: float) -> None:
        """NCCL waits for ever; the host aborts it."""

    def abort(self) -> None:
        """Let kernels that wait end, with rubbish."""
        self._world_of.abort()

    def failed(self) -> int:
        """NCCL does not say who is missing."""
        return -1

    def other(self) -> tuple[int, int]:
        """What comes carries no tag."""
        return 0, 0

    def tally(self) -> Tally:
        """Gathers as they were enqueued; NCCL does not say how long it waited."""
        told = self._board.tally()
        return told._replace(gathers=self._gathers, bytes=told.bytes + self._gathered_bytes)

    def all_reduce(self, count: int, out: CudaTensor, *, add: bool) -> None:
        """out[r] = Σ over ranks of partial[r] (+ out[r]) for `count` rows."""
        for first in range(0, count, MOST_ROWS):
            self._sum(first, min(MOST_ROWS, count - first), out, add=add)

    def _sum(self, first: int, count: int, out: CudaTensor, *, add: bool) -> None:
        partial, gathered = self.partial, int(self._gathered.data.ptr)
        stream = load_cupy().cuda.get_current_stream().ptr
        self._world_of.allGather(
            partial.pointer + 4 * first * partial.stride, gathered, count * partial.stride,
            _FLOAT32, stream,
        )  # fmt: skip
        blocks = min(MOST_BLOCKS, -(-count * self._width // THREADS))
        self._kernels.launch(
            COLLECTIVE, "reduce_gathered", (blocks,), THREADS,
            (gathered, partial.stride, count, self._width, out.pointer + 4 * first * out.stride,
             out.stride, int(add), self._world, *self._board.addresses),
            early=True,
        )  # fmt: skip

    def gather(self, source: int, words: int, out: int) -> None:
        """out [world][words] = the 64-bit words at the device address `source` of every rank."""
        stream = load_cupy().cuda.get_current_stream().ptr
        self._world_of.allGather(source, out, words, _UINT64, stream)
        self._gathers += 1
        self._gathered_bytes += 8 * words
