"""Copies between device and host beside the steps: on a stream of their own, in pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy

PAGE = 4096
"""What direct transfers of files need of an address."""


class Transfers:
    """Copies in the order of the calls, behind what `steps` held at the last `fence` and beside all
    that it was given since."""

    def __init__(self, steps: Any) -> None:
        cupy = load_cupy()
        self._runtime = cupy.cuda.runtime
        self._steps = steps
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._reached = cupy.cuda.Event(disable_timing=True)

    def fence(self) -> None:
        """Copies from now on wait for what the steps' stream holds now."""
        self._reached.record(self._steps)
        self._stream.wait_event(self._reached)

    def fetch(self, pointer: int, out: npt.NDArray[np.uint8]) -> None:
        """Device memory at `pointer` to `out`, which is whole after `finish`."""
        kind = self._runtime.memcpyDeviceToHost
        self._copy(int(out.ctypes.data), pointer, out.nbytes, kind)

    def send(self, pointer: int, data: npt.NDArray[np.uint8]) -> None:
        """`data`, which stays as it is until `finish`, to device memory at `pointer`."""
        kind = self._runtime.memcpyHostToDevice
        self._copy(pointer, int(data.ctypes.data), data.nbytes, kind)

    def finish(self) -> None:
        """Wait for all copies."""
        self._stream.synchronize()

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, self._stream.ptr)


def pinned(size: int) -> memoryview:
    """`size` bytes of host memory that the device reads and writes by itself, at a page's start."""
    held = np.frombuffer(load_cupy().cuda.alloc_pinned_memory(size + PAGE), np.uint8)
    start = -held.ctypes.data % PAGE
    return memoryview(held[start : start + size])  # type: ignore[arg-type]
