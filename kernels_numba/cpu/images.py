"""The CPU backend's matrices and vectors as plain arrays, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.cpu.matrix import CpuMatrix
from kernels_numba.cpu.memory import Block, allocate, padded
from kernels_numba.images import VECTOR_FORM, ArrayShape, HeldArrays
from kernels_numba.weights import LAYOUTS, Code, Form, Scale


def code_type(form: Form) -> np.dtype[Any]:
    """The dtype in which a form's codes lie."""
    wide = {Code.F32: np.float32, Code.BF16: np.uint16}
    return np.dtype(wide.get(LAYOUTS[form].code, np.uint8))


class CpuImages:
    """Implements `kernels_numba.images.ImageBackend`."""

    def held_arrays(self, tensor: CpuMatrix | Block) -> HeldArrays:
        if isinstance(tensor, CpuMatrix):
            arrays = (tensor.data, tensor.scale, tensor.factors)
            return HeldArrays(int(tensor.form), tensor.rows, tensor.columns, arrays)
        return HeldArrays(VECTOR_FORM, 1, tensor.width, (tensor.array,))

    def array_shapes(self, form: int, rows: int, columns: int, lines: int) -> list[ArrayShape]:
        if form == VECTOR_FORM:
            return [ArrayShape((padded(columns),), np.dtype(np.float32))]
        kind, layout, depth = Form(form), LAYOUTS[Form(form)], padded(columns)
        codes = code_type(kind)
        each = 1 if kind is Form.BF12 else layout.scales(depth)
        if not layout.indexed:
            lines = rows if layout.scale is not Scale.NONE else 0
        indexed = rows if layout.factor or layout.indexed else 0
        offsets = np.dtype(np.uint32 if layout.indexed else np.float32)
        return [
            ArrayShape((rows, layout.code_bytes(depth) // codes.itemsize), codes),
            ArrayShape((lines, each), layout.scale.dtype),
            ArrayShape((indexed,), offsets),
        ]

    def room(self, wanted: ArrayShape) -> npt.NDArray[Any]:
        return allocate(wanted.shape, wanted.dtype)

    def adopt(self, held: HeldArrays) -> CpuMatrix | Block:
        if held.form == VECTOR_FORM:
            return Block(held.arrays[0], held.columns)
        matrix = CpuMatrix.of(Form(held.form), held.columns, *held.arrays)
        self._make_room(matrix)
        return matrix

    def _make_room(self, matrix: CpuMatrix) -> None:
        """Scratch for products with it; the backend's own."""
        raise NotImplementedError
