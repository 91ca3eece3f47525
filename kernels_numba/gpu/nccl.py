"""Sums over GPUs through NCCL: gathered, then added here, since NCCL's own order is not fixed."""

from __future__ import annotations

import os
from typing import Any

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor
from kernels_numba.gpu.source import COLLECTIVE

THREADS = 256
MOST_BLOCKS = 1024
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
    return bytes(code & 0xFF for code in _nccl().get_unique_id())


class NcclRanks:
    """As `kernels_numba.gpu.ranks.RankMemory`, on any network that NCCL knows."""

    tells = False

    def __init__(
        self, kernels: Kernels, identity: bytes, rank: int, world: int, capacity: int, width: int
    ) -> None:
        nccl = _nccl()
        told = tuple(code - 256 if code > 127 else code for code in identity)
        try:
            self._world_of = nccl.NcclCommunicator(world, told, rank)
        except nccl.NcclError as error:
            raise CudaError(f"NCCL does not connect the {world} ranks: {error}") from error
        self._kernels, self._world, self._width = kernels, world, width
        self.partial = CudaTensor(capacity, width, wide=True)
        cupy = load_cupy()
        self._gathered = cupy.zeros((world, capacity, self.partial.stride), cupy.float32)
        self._kernels.prepare([COLLECTIVE])

    def limit(self, seconds: float) -> None:
        """NCCL waits for ever; the host aborts it."""

    def abort(self) -> None:
        """Let kernels that wait end, with rubbish."""
        self._world_of.abort()

    def failed(self) -> int:
        """NCCL does not say who is missing."""
        return -1

    def all_reduce(self, count: int, out: CudaTensor, *, add: bool) -> None:
        """out[r] = Σ over ranks of partial[r] (+ out[r]) for `count` rows."""
        if count == 0:
            return
        partial, gathered = self.partial, int(self._gathered.data.ptr)
        stream = load_cupy().cuda.get_current_stream().ptr
        self._world_of.allGather(
            partial.pointer, gathered, count * partial.stride, _FLOAT32, stream
        )
        blocks = min(MOST_BLOCKS, -(-count * self._width // THREADS))
        self._kernels.launch(
            COLLECTIVE, "reduce_gathered", (blocks,), THREADS,
            (gathered, partial.stride, count, self._width, out.pointer, out.stride, int(add),
             self._world),
            early=True,
        )  # fmt: skip

    def gather(self, source: int, words: int, out: int) -> None:
        """out [world][words] = the 64-bit words at the device address `source` of every rank."""
        stream = load_cupy().cuda.get_current_stream().ptr
        self._world_of.allGather(source, out, words, _UINT64, stream)
