"""Numbered entries of device memory: cache blocks, requests' own state and its snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.transfer import Transfers


class CudaEntries:
    """Entries that several arrays hold together: entry i is row i of each, C-contiguous.

    Copies go to the stream that `enter` makes current, in order with the kernels there; what
    `read` and `write` move goes through `transfers`.
    """

    enter: Callable[[], None] = staticmethod(lambda: None)
    transfers: Transfers

    def __init__(self, *arrays: Any) -> None:
        self._arrays = arrays
        self._sizes = [int(array[0].nbytes) if len(array) else 0 for array in arrays]
        self._pointers = [int(array.data.ptr) for array in arrays]
        self.entry_bytes = sum(self._sizes)

    def copy(self, source: CudaEntries, index: int, to: int) -> None:
        self.enter()
        for mine, other in zip(self._arrays, source._arrays, strict=True):
            mine[to] = other[index]

    def clear(self, index: int) -> None:
        self.enter()
        for array in self._arrays:
            array[index] = 0

    def read(self, index: int, out: memoryview) -> None:
        self.enter()
        held = np.frombuffer(out, np.uint8)
        at = 0
        for pointer, size in zip(self._pointers, self._sizes, strict=True):
            self.transfers.fetch(pointer + index * size, held[at : at + size])
            at += size

    def write(self, index: int, data: memoryview) -> None:
        self.enter()
        held = np.frombuffer(data, np.uint8)
        at = 0
        for pointer, size in zip(self._pointers, self._sizes, strict=True):
            self.transfers.send(pointer + index * size, held[at : at + size])
            at += size


class CudaStore(CudaEntries):
    """[entries, rows, padded width]: float32 where `wide`, else bf16 bits."""

    def __init__(self, entries: int, rows: int, width: int, padded: int, *, wide: bool) -> None:
        cupy = load_cupy()
        kind = cupy.float32 if wide else cupy.uint16
        self.array = cupy.zeros((entries, rows, padded), kind)
        self.pointer = int(self.array.data.ptr)
        self.width = width
        super().__init__(self.array)
