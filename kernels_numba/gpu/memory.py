"""Device arrays: activations, weights, and what the host sends at the start of a step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy
from kernels_numba.weights import Form, Part

PAD = 128
"""Values to which rows are padded: the longest chunk of K that a kernel reads at once."""
FACTOR_SCALE = 256.0
"""What NVFP4 rows' factors are larger by: kernels decode values that much too small."""
_CHUNK = {Form.BF16: 64, Form.NVFP4: 128}


def padded(width: int) -> int:
    return -(-width // PAD) * PAD


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """bf16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class CudaTensor:
    """[rows, padded width], float32 where `wide`, else bf16 bits. `stride` counts values."""

    __slots__ = ("array", "pointer", "stride", "wide", "width")

    def __init__(self, rows: int, width: int, *, wide: bool) -> None:
        cupy = load_cupy()
        kind = cupy.float32 if wide else cupy.uint16
        self._take(cupy.zeros((rows, padded(width)), kind), width, int(wide))

    def _take(self, array: Any, width: int, wide: int) -> None:
        self.width, self.wide, self.stride = width, wide, int(array.shape[1])
        self.array = array
        self.pointer = int(array.data.ptr)

    @classmethod
    def over(cls, memory: Any, rows: int, width: int) -> CudaTensor:
        """float32 over memory that something else owns."""
        cupy = load_cupy()
        tensor = cls.__new__(cls)
        tensor._take(cupy.ndarray((rows, padded(width)), cupy.float32, memory), width, 1)
        return tensor

    @property
    def target(self) -> tuple[int, int, int]:
        """How kernels are told of it: pointer, stride, wide."""
        return self.pointer, self.stride, self.wide

    def host(self, count: int) -> npt.NDArray[np.float32]:
        values = self.array[:count, : self.width].get()
        return values if self.wide else from_bf16(values)

    def set(self, values: npt.NDArray[np.float32]) -> None:
        cupy = load_cupy()
        sent = np.ascontiguousarray(values, np.float32) if self.wide else to_bf16(values)
        self.array[: values.shape[0], : self.width] = cupy.asarray(sent)


class CudaVector:
    """float32 parameters."""

    __slots__ = ("array", "pointer", "width")

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.array = load_cupy().asarray(np.ascontiguousarray(values, np.float32))
        self.width = int(values.shape[-1])
        self.pointer = int(self.array.data.ptr)


class CudaMatrix:
    """[N, K] in checkpoint form, K padded with zeros to whole chunks; zero until filled."""

    def __init__(self, form: Form, rows: int, columns: int) -> None:
        cupy = load_cupy()
        if form not in _CHUNK:
            raise ValueError(f"the CUDA backend reads bf16 and NVFP4 matrices, not {form.name}")
        if form is Form.NVFP4 and columns % 16:
            raise ValueError(f"NVFP4 rows hold whole groups of 16 values, not {columns}")
        self.form, self.rows, self.columns = form, rows, columns
        self.chunks = -(-columns // _CHUNK[form])
        depth = self.chunks * _CHUNK[form]
        width, kind = (depth // 2, cupy.uint8) if form is Form.NVFP4 else (depth, cupy.uint16)
        scaled = rows if form is Form.NVFP4 else 0
        self.data = cupy.zeros((rows, width), kind)
        self.scale = cupy.zeros((scaled, depth // 16), cupy.uint8)
        self.factors = cupy.zeros((scaled,), cupy.float32)
        self.weights = (
            int(self.data.data.ptr),
            int(self.data.strides[0]),
            int(self.scale.data.ptr) if scaled else 0,
            int(self.scale.strides[0]) if scaled else 0,
            int(self.factors.data.ptr) if scaled else 0,
        )

    @classmethod
    def of(cls, parts: Sequence[Part]) -> CudaMatrix:
        """Parts of one form and K, stacked."""
        form, columns = parts[0].form, parts[0].columns
        if any(part.form is not form or part.columns != columns for part in parts):
            raise ValueError("parts of one matrix differ in form or K")
        matrix = cls(form, sum(part.rows for part in parts), columns)
        first = 0
        for part in parts:
            last = first + part.rows
            _fill(matrix.data[first:last], part.data)
            if part.scale is not None:
                _fill(matrix.scale[first:last], part.scale)
                matrix.factors[first:last] = np.float32(part.multiplier * FACTOR_SCALE)
            first = last
        return matrix

    def cut(self, first: int, rows: int) -> CudaMatrix:
        """Rows first … first + rows − 1, where they lie."""
        cut = copy(self)
        last = first + rows
        cut.rows = rows
        cut.data = self.data[first:last]
        if self.scale.size:
            cut.scale, cut.factors = self.scale[first:last], self.factors[first:last]
        data, stride, scale, scale_stride, factors = self.weights
        cut.weights = (
            data + first * stride,
            stride,
            scale + first * scale_stride,
            scale_stride,
            factors and factors + 4 * first,
        )
        return cut

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return int(self.data.nbytes + self.scale.nbytes + self.factors.nbytes)


def _fill(target: Any, values: npt.NDArray[Any]) -> None:
    """Copy host rows into device rows that may be longer."""
    values = np.ascontiguousarray(values)
    if target.shape == values.shape:
        target.set(values)
    else:
        target[:, : values.shape[1]] = load_cupy().asarray(values)


class Staging:
    """Pinned buffers through which small host arrays reach the device without a wait."""

    BUFFERS = 16

    def __init__(self, size: int) -> None:
        self._cupy = load_cupy()
        self._buffers = [self._buffer(size) for _ in range(self.BUFFERS)]
        self._events = [self._cupy.cuda.Event(disable_timing=True) for _ in range(self.BUFFERS)]
        self._next = 0

    def _buffer(self, size: int) -> npt.NDArray[np.uint8]:
        memory = self._cupy.cuda.alloc_pinned_memory(size)
        return np.frombuffer(memory, np.uint8, size)

    def send(self, pointer: int, values: npt.NDArray[Any]) -> None:
        """Copy `values` to the device address `pointer`, in the order of the current stream."""
        at = self._next
        self._next = (at + 1) % self.BUFFERS
        self._events[at].synchronize()
        if self._buffers[at].size < values.nbytes:
            self._buffers[at] = self._buffer(values.nbytes)
        held = self._buffers[at][: values.nbytes]
        held.view(values.dtype).reshape(values.shape)[...] = values
        stream = self._cupy.cuda.get_current_stream()
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            pointer, held.ctypes.data, values.nbytes, runtime.memcpyHostToDevice, stream.ptr
        )
        self._events[at].record(stream)
