"""Numbered entries of host memory: cache blocks, requests' own state and its snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.cpu.memory import allocate
from kernels_numba.cpu.packed import Packing
from kernels_numba.packed_rows import PackedRow


class CpuEntries:
    """Entries that several arrays hold together: entry i is row i of each, C-contiguous."""

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        self._arrays = arrays
        self._bytes = [array.view(np.uint8).reshape(len(array), -1) for array in arrays]
        self.entry_bytes = sum(flat.shape[1] for flat in self._bytes)

    def copy(self, source: CpuEntries, index: int, to: int) -> None:
        for mine, other in zip(self._arrays, source._arrays, strict=True):
            mine[to] = other[index]

    def clear(self, index: int) -> None:
        for array in self._arrays:
            array[index] = 0

    def read(self, index: int, out: memoryview) -> None:
        held = np.frombuffer(out, np.uint8)
        at = 0
        for flat in self._bytes:
            held[at : at + flat.shape[1]] = flat[index]
            at += flat.shape[1]

    def write(self, index: int, data: memoryview) -> None:
        held = np.frombuffer(data, np.uint8)
        at = 0
        for flat in self._bytes:
            flat[index] = held[at : at + flat.shape[1]]
            at += flat.shape[1]


class CpuStore(CpuEntries):
    """float32 [entries, rows, padded width], or bytes [entries, rows, row's bytes] where rows are
    packed, with its address; `lines` are the rows of an entry and the bytes from one to the next,
    `packing` what kernels know of a packed row (0: float32)."""

    def __init__(self, entries: int, rows: int, row: PackedRow) -> None:
        self._packing = Packing(row)
        self.packing = self._packing.address
        self.array = allocate((entries, rows, self._packing.line), np.uint8)
        if not self.packing:
            self.array = self.array.view(np.float32)
        self.address = int(self.array.ctypes.data)
        self.width = row.width
        self.lines = (rows, int(self.array.strides[1]))
        super().__init__(self.array)
