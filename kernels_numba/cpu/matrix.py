"""Weights as the CPU kernels hold them: rows of one form, K padded to whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels_numba.cpu.memory import allocate
from kernels_numba.weights import VECTOR, Form, Part


class CpuMatrix:
    """[N, K] in checkpoint form, copied once into huge pages so that the file can be let go.

    `weights` are the leading arguments of every kernel that reads a matrix: address and row
    stride of the data, of the scales, and the address of the per-row factors.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        form = parts[0].form
        columns = parts[0].columns
        if any(part.form is not form or part.columns != columns for part in parts):
            message = "parts of one matrix differ in form or K"
            raise ValueError(message)
        if form is Form.NVFP4 and columns % VECTOR:
            message = f"NVFP4 rows hold whole groups of 16 values, not {columns}"
            raise ValueError(message)
        self.form = int(form)
        self.rows = sum(part.rows for part in parts)
        self.columns = columns
        self.depth = -(-columns // VECTOR) * VECTOR
        width = self.depth // 2 if form is Form.NVFP4 else self.depth
        self.data = allocate((self.rows, width), parts[0].data.dtype)
        scaled = self.rows if form is Form.NVFP4 else 0
        self.scale = allocate((scaled, self.depth // VECTOR), np.uint8)
        self.factors = allocate((scaled,), np.float32)
        first = 0
        for part in parts:
            last = first + part.rows
            self.data[first:last, : part.data.shape[1]] = part.data
            if part.scale is not None:
                self.scale[first:last] = part.scale
                self.factors[first:last] = part.multiplier
            first = last
        self.weights = (
            int(self.data.ctypes.data),
            int(self.data.strides[0]),
            int(self.scale.ctypes.data) if scaled else 0,
            int(self.scale.strides[0]) if scaled else 0,
            int(self.factors.ctypes.data) if scaled else 0,
        )
