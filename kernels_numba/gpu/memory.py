"""Device arrays: activations, weights, and what the host sends at the start of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.stream import fetched
from kernels_numba.weights import LAYOUTS, Form, Part, Scale

PAD = 128
"""Values to which rows are padded: the longest chunk of K that a kernel reads at once."""
FACTOR_SCALE = 256.0
"""What NVFP4 rows' factors are larger by: kernels decode values that much too small."""
CHUNK = {Form.BF16: 64, Form.NVFP4: 128, Form.FP8_BLOCK: 128}
"""Values of K that kernels read at once: rows of weights are padded to whole chunks."""
LINE_ROWS = 8
"""Weight rows that share a line of FP8 scales: the finest that a kernel's strips ask for."""
FP8_GROUPS = (128, 32)
"""Values that share an FP8 scale, in the two forms in which kernels read them."""


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
        values = fetched(self.array[:count, : self.width])
        return values if self.wide else from_bf16(values)

    def set(self, values: npt.NDArray[np.float32]) -> None:
        cupy = load_cupy()
        sent = np.ascontiguousarray(values, np.float32) if self.wide else to_bf16(values)
        self.array[: values.shape[0], : self.width] = cupy.asarray(sent)


class CudaVector:
    """float32 parameters, padded with zeros to whole fours."""

    __slots__ = ("array", "pointer", "width")

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.width = int(values.shape[-1])
        held = np.ascontiguousarray(values, np.float32)
        if held.ndim == 1:
            held = np.pad(held, (0, -self.width % 4))
        self.array = load_cupy().asarray(held)
        self.pointer = int(self.array.data.ptr)


class CudaMatrix:
    """[N, K] in checkpoint form, K padded with zeros to whole chunks; zero until filled.

    `group`: values that share a scale, where kernels are made for one (FP8), else 0. FP8 scales lie
    in lines of LINE_ROWS rows, whatever the checkpoint's blocks. `multiple`: of what the rows of
    each part are multiples, where a part is one projection or a gate with its up.
    """

    def __init__(
        self, form: Form, rows: int, columns: int, group: int = 0, *, multiple: int = 1
    ) -> None:
        if form not in CHUNK:
            raise ValueError(f"the CUDA backend does not read {form.name} matrices")
        if form is Form.NVFP4 and columns % 16:
            raise ValueError(f"NVFP4 rows hold whole groups of 16 values, not {columns}")
        self.form, self.rows, self.columns, self.group = form, rows, columns, group
        self.chunks = -(-columns // CHUNK[form])
        self._allocate(rows, self.chunks * CHUNK[form], multiple)
        self.weights = self._addresses()

    def _allocate(self, rows: int, depth: int, multiple: int) -> None:
        cupy = load_cupy()
        layout = LAYOUTS[self.form]
        scaled = layout.scale is not Scale.NONE
        # Kernels read gate rows, up rows and each expert's by whole bands of LINE_ROWS: where these
        # may end inside a band, the last one's ends behind the matrix. Room for it everywhere would
        # make 2 MiB, in which drivers give memory, of a few rows.
        held = rows if multiple % (2 * LINE_ROWS) == 0 else rows + LINE_ROWS - 1
        lines = -(-held // LINE_ROWS)
        kind = cupy.uint16 if self.form is Form.BF16 else cupy.uint8
        self.data = cupy.zeros((held, layout.code_bytes(depth) // kind().itemsize), kind)[:rows]
        groups = depth // (self.group or layout.group) if scaled else 0
        scale = cupy.zeros(
            ((lines if layout.grid else held) if scaled else 0, groups), layout.scale.dtype
        )
        self.scale = scale[: -(-rows // LINE_ROWS) if layout.grid else rows]
        self.factors = cupy.zeros((rows if layout.factor else 0,), cupy.float32)

    def _addresses(self) -> tuple[int, int, int, int, int]:
        """How kernels are told of it: data and bytes from row to row, scales alike, factors."""
        factors = int(self.factors.data.ptr) if self.factors.size else 0
        return (*_address(self.data), *_address(self.scale), factors)

    @classmethod
    def of(cls, parts: Sequence[Part]) -> CudaMatrix:
        """Parts of one form and K, stacked. Raises ValueError where they cannot be."""
        form, columns = parts[0].form, parts[0].columns
        if any(part.form is not form or part.columns != columns for part in parts):
            raise ValueError("parts of one matrix differ in form or K")
        group = 0
        if LAYOUTS[form].grid:
            group = max(g for g in FP8_GROUPS if all(part.block[1] % g == 0 for part in parts))
        every = [part.rows for part in parts]
        matrix = cls(form, sum(every), columns, group, multiple=math.gcd(*every))
        first = 0
        for part in parts:
            matrix._take(part, first)
            first += part.rows
        return matrix

    def cut(self, first: int, rows: int) -> CudaMatrix:
        """Rows first … first + rows − 1, where they lie. Raises ValueError where FP8's lines of
        scales do not begin."""
        step = LINE_ROWS if self.group else 1
        if first % step:
            raise ValueError(f"an FP8 matrix is cut at multiples of {step} rows, not {first}")
        cut = copy(self)
        cut.rows = rows
        cut.data = self.data[first : first + rows]
        cut.scale = self.scale[first // step : -(-(first + rows) // step)]
        cut.factors = self.factors[first : first + rows]
        cut.weights = cut._addresses()
        return cut

    def _take(self, part: Part, first: int) -> None:
        last = first + part.rows
        _fill(self.data[first:last], part.data)
        if part.scale is None:
            return
        if self.group:
            if first % LINE_ROWS or part.block[0] % LINE_ROWS:
                message = (
                    f"FP8 rows {first} … {last - 1} with blocks of {part.block[0]} rows: the CUDA "
                    f"backend needs multiples of {LINE_ROWS}"
                )
                raise ValueError(message)
            lines = np.arange(first, last, LINE_ROWS)
            scale = part.scale[(lines - first) // part.block[0]]
            scale = scale.repeat(part.block[1] // self.group, axis=1)
            held = self.scale[first // LINE_ROWS : first // LINE_ROWS + len(lines)]
            _fill(held, scale[:, : held.shape[1]])
            return
        if (part.scale & 0x80).any():
            raise ValueError("an NVFP4 scale is negative: the checkpoint is damaged")
        _fill(self.scale[first:last], part.scale)
        self.factors[first:last] = np.float32(part.multiplier * FACTOR_SCALE)

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the matrix reads."""
        return int(self.data.nbytes + self.scale.nbytes + self.factors.nbytes)


def _address(array: Any) -> tuple[int, int]:
    """Device address and bytes from row to row; zeros for an empty array."""
    return (int(array.data.ptr), int(array.strides[0])) if array.size else (0, 0)


def _fill(target: Any, values: npt.NDArray[Any]) -> None:
    """Copy host rows into device rows that may be longer."""
    values = np.ascontiguousarray(values)
    if target.shape == values.shape:
        target.set(values)
    else:
        target[:, : values.shape[1]] = load_cupy().asarray(values)


class Staging:
    """Pinned buffers through which small host arrays reach the device without a wait.

    The device reads them where they lie or copies them; each is written again when that is done.
    """

    BUFFERS = 48
    """Two steps of sixteen rows, each with a bias of its own, and what else a step sends."""

    def __init__(self, size: int) -> None:
        self._cupy = load_cupy()
        self._buffers = [self._buffer(size) for _ in range(self.BUFFERS)]
        self._events = [self._cupy.cuda.Event(disable_timing=True) for _ in range(self.BUFFERS)]
        self._next = 0

    def _buffer(self, size: int) -> npt.NDArray[np.uint8]:
        memory = self._cupy.cuda.alloc_pinned_memory(size)
        return np.frombuffer(memory, np.uint8, size)

    @contextmanager
    def lend(self, size: int) -> Iterator[npt.NDArray[np.uint8]]:
        """`size` bytes that what is enqueued inside, on the current stream, may read."""
        at = self._next
        self._next = (at + 1) % self.BUFFERS
        self._events[at].synchronize()
        if self._buffers[at].size < size:
            self._buffers[at] = self._buffer(size)
        yield self._buffers[at][:size]
        self._events[at].record(self._cupy.cuda.get_current_stream())

    def send(self, pointer: int, values: npt.NDArray[Any]) -> None:
        """Copy `values` to the device address `pointer`, in the order of the current stream."""
        runtime = self._cupy.cuda.runtime
        stream = self._cupy.cuda.get_current_stream()
        with self.lend(values.nbytes) as held:
            held.view(values.dtype).reshape(values.shape)[...] = values
            runtime.memcpyAsync(
                pointer, held.ctypes.data, values.nbytes, runtime.memcpyHostToDevice, stream.ptr
            )
