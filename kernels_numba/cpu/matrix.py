"""Weights as the CPU kernels hold them: rows of one form, K padded to whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernels_numba.cpu.dot import block_address, row_address
from kernels_numba.cpu.memory import allocate
from kernels_numba.weights import LAYOUTS, VECTOR, Form, Part

Weights: TypeAlias = "tuple[int, int, int, int, int]"
"""A matrix as kernels take it: address and row stride of the data, the same of the scales, and the
address of the per-row factors (in a grid: of uint32 offsets of the rows' scales)."""


def _taken(array: npt.NDArray[Any], index: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
    held = allocate((len(index), *array.shape[1:]), array.dtype)
    np.take(array, index, axis=0, out=held)
    return held


class CpuMatrix:
    """[N, K] in checkpoint form, copied once into huge pages so that the file can be let go.

    `weights` are arguments of every kernel that reads a matrix. `dot` and `widen` are the addresses
    of the form's block and row reader.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        form = parts[0].form
        columns = parts[0].columns
        if any(part.form is not form or part.columns != columns for part in parts):
            message = "parts of one matrix differ in form or K"
            raise ValueError(message)
        layout = LAYOUTS[form]
        if layout.group and not layout.grid and columns % layout.group:
            message = f"{form.name} rows hold whole groups of {layout.group}, not {columns}"
            raise ValueError(message)
        self.form, self.layout = form, layout
        self.dot, self.widen = block_address(form), row_address(form)
        self.rows = sum(part.rows for part in parts)
        self.columns = columns
        self.depth = -(-columns // VECTOR) * VECTOR
        width = layout.code_bytes(self.depth) // parts[0].data.itemsize
        self.data = allocate((self.rows, width), parts[0].data.dtype)
        scales = [self._scales(part) for part in parts]
        lines = sum(scale.shape[0] for scale in scales)
        each = 1 if form is Form.BF12 else layout.scales(self.depth)
        self.scale = allocate((lines, each), layout.scale.dtype)
        indexed = self.rows if layout.factor or layout.indexed else 0
        self.factors = allocate((indexed,), np.uint32 if layout.indexed else np.float32)
        first = line = 0
        for part, scale in zip(parts, scales, strict=True):
            last = first + part.rows
            self.data[first:last, : part.data.shape[1]] = part.data
            self.scale[line : line + scale.shape[0], : scale.shape[1]] = scale
            if layout.grid:
                at = line + np.arange(part.rows) // part.block[0]
                self.factors[first:last] = at * self.scale.strides[0]
            elif part.offsets is not None:
                self.factors[first:last] = line + part.offsets
            elif layout.factor:
                self.factors[first:last] = part.multiplier
            first, line = last, line + scale.shape[0]
        self._find()

    @classmethod
    def of(
        cls,
        form: Form,
        columns: int,
        data: npt.NDArray[Any],
        scale: npt.NDArray[Any],
        factors: npt.NDArray[Any],
    ) -> CpuMatrix:
        """A matrix over arrays that another one's are copies of."""
        matrix = cls.__new__(cls)
        matrix.form, matrix.layout = form, LAYOUTS[form]
        matrix.dot, matrix.widen = block_address(form), row_address(form)
        matrix.rows, matrix.columns = len(data), columns
        matrix.depth = -(-columns // VECTOR) * VECTOR
        matrix.data, matrix.scale, matrix.factors = data, scale, factors
        matrix._find()
        return matrix

    def cut(self, first: int, rows: int) -> CpuMatrix:
        """Rows first … first + rows − 1, where they lie; of forms whose rows have no grid."""
        if self.layout.grid:
            message = f"{self.form.name}: rows that share a line of scales cannot be cut"
            raise ValueError(message)
        cut = copy(self)
        cut.rows, last = rows, first + rows
        cut.data = self.data[first:last]
        if len(self.scale) and not self.layout.indexed:
            cut.scale = self.scale[first:last]
        if len(self.factors):
            cut.factors = self.factors[first:last]
        cut._find()
        return cut

    def take(self, index: npt.NDArray[np.int32]) -> CpuMatrix:
        """Rows `index` in this order, copied; lines of scales that rows find by offset stay where
        they are."""
        taken = copy(self)
        taken.rows = len(index)
        taken.data = _taken(self.data, index)
        if not self.layout.indexed:
            taken.scale = _taken(self.scale, index) if len(self.scale) else self.scale
        taken.factors = _taken(self.factors, index) if len(self.factors) else self.factors
        taken._find()
        return taken

    def _find(self) -> None:
        """Note where the arrays lie."""
        lines = len(self.scale)
        self.weights: Weights = (
            int(self.data.ctypes.data),
            int(self.data.strides[0]),
            int(self.scale.ctypes.data) if lines else 0,
            int(self.scale.strides[0]) if lines and not self.layout.indexed else 0,
            int(self.factors.ctypes.data) if len(self.factors) else 0,
        )

    def _scales(self, part: Part) -> npt.NDArray[Any]:
        """The part's lines of scales, one per `layout.group` columns."""
        if part.scale is None:
            return np.zeros((0, 0), self.layout.scale.dtype)
        if part.offsets is not None:
            return part.scale.reshape(-1, 1)
        if not self.layout.grid:
            return part.scale
        repeats, rest = divmod(part.block[1], self.layout.group)
        if rest:
            message = f"{part.form.name}: blocks of {part.block[1]} columns, not whole groups"
            raise ValueError(f"{message} of {self.layout.group}")
        return part.scale.repeat(repeats, axis=1)[:, : -(-part.columns // self.layout.group)]
