"""The forms in which weights lie, and one matrix part of them. The only description of each form.

A form says how a row's values are written, what scales them and what they cost. A part is rows of
one matrix in that form; it can be cut by rows and by columns without touching a value.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt


class Form(enum.IntEnum):
    """How a matrix's values are written. The ordinals are the kernels' format codes."""

    F32 = 0
    BF16 = 1
    NVFP4 = 2
    FP8_BLOCK = 3
    FP8_CHANNEL = 4
    MXFP4 = 5
    INT4_G64 = 6
    INT8_G64 = 7
    INT4_G128 = 8
    INT8_G128 = 9
    BF12 = 10
    MXFP8 = 11


class Code(enum.Enum):
    """One value before its scale. e2m1 and e4m3 are the OCP formats, of int4 and int8 the zero is
    in the middle: value = code − 8, code − 128. Two codes of four bits share a byte, the even
    element in the low half. bf12 is bf16 with exponents relative to the row's (`bf12.narrow`).
    """

    F32 = "f32"
    BF16 = "bf16"
    BF12 = "bf12"
    E4M3 = "e4m3"
    INT8 = "int8"
    E2M1 = "e2m1"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        wide = {"f32": 32, "bf16": 16, "bf12": 12, "e4m3": 8, "int8": 8}
        return wide.get(self.value, 4)


class Scale(enum.Enum):
    """How a scale is written: bf16 as its bits; e8m0 is 2^(code − 127), 255 NaN."""

    NONE = "none"
    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    E4M3 = "e4m3"
    E8M0 = "e8m0"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype({"f32": "f4", "bf16": "u2", "f16": "f2"}.get(self.value, "u1"))


@dataclass(frozen=True, slots=True)
class Layout:
    """value = code · scale (· factor), in float32.

    `group` consecutive values of a row share a scale, or the whole row where it is 0. With `grid` a
    block of rows shares its line of scales; otherwise every row has its own. `factor`: one float32
    per row multiplies its scales. `indexed`: a row's scales are found by its own offset.
    """

    code: Code
    scale: Scale = Scale.NONE
    group: int = 0
    grid: bool = False
    factor: bool = False

    @property
    def indexed(self) -> bool:
        return self.grid or self.code is Code.BF12

    def scales(self, columns: int) -> int:
        """Scales of a row of `columns` values."""
        if self.scale is Scale.NONE:
            return 0
        return -(-columns // self.group) if self.group else 1

    def code_bytes(self, columns: int) -> int:
        return columns * self.code.bits // 8


FP8_GROUP = 32
"""Columns per scale that kernels read of an FP8 grid: grids of larger blocks repeat their scales,
so one kernel reads every grid, also one that was cut for a rank."""
FP8_BLOCK_ROWS = 128

LAYOUTS = {
    Form.F32: Layout(Code.F32),
    Form.BF16: Layout(Code.BF16),
    Form.NVFP4: Layout(Code.E2M1, Scale.E4M3, 16, factor=True),
    Form.FP8_BLOCK: Layout(Code.E4M3, Scale.F32, FP8_GROUP, grid=True),
    Form.FP8_CHANNEL: Layout(Code.E4M3, Scale.F32),
    Form.MXFP4: Layout(Code.E2M1, Scale.E8M0, 32),
    Form.INT4_G64: Layout(Code.INT4, Scale.BF16, 64),
    Form.INT8_G64: Layout(Code.INT8, Scale.BF16, 64),
    Form.INT4_G128: Layout(Code.INT4, Scale.F16, 128),
    Form.INT8_G128: Layout(Code.INT8, Scale.F16, 128),
    Form.BF12: Layout(Code.BF12),
    Form.MXFP8: Layout(Code.E4M3, Scale.E8M0, 32),
}

BF12_HEADER = 8
"""Bytes planned for a BF12 row's header: what every row has, and one value that stands in it."""
DUMMY_DEVIATION = 0.02
"""Standard deviation of random weights."""
VECTOR = 16
"""Values per step of every dot product: K is padded to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one matrix in checkpoint form; parts stacked along N make a `Matrix`.

    form         data                   scale                      value
    F32          float32 [N, K]         -                          data
    BF16         uint16 [N, K] (bits)   -                          data
    NVFP4        uint8 [N, K/2] (e2m1)  uint8 [N, K/16] (e4m3)     code · (scale · multiplier)
    FP8_BLOCK    uint8 [N, K] (e4m3)    float32 [⌈N/R⌉, ⌈K/C⌉]     code · scale; block = (R, C)
    FP8_CHANNEL  uint8 [N, K] (e4m3)    float32 [N, 1]             code · scale
    MXFP4        uint8 [N, K/2] (e2m1)  uint8 [N, K/32] (e8m0)     code · scale
    INT4_G64     uint8 [N, K/2]         uint16 [N, K/64] (bf16)    (code − 8) · scale
    INT8_G64     uint8 [N, K]           uint16 [N, K/64] (bf16)    (code − 128) · scale
    INT4_G128    uint8 [N, K/2]         float16 [N, K/128]         (code − 8) · scale
    INT8_G128    uint8 [N, K]           float16 [N, K/128]         (code − 128) · scale
    BF12         uint8 [N, 3K/2]        uint8 (rows' headers)      bf16's; made by `bf12.narrow`
    MXFP8        uint8 [N, K] (e4m3)    uint8 [N, K/32] (e8m0)     code · scale

    `block` is (128, 128) in checkpoints, (32, 32) in some; C is a multiple of 32. The e4m3 codes
    0x7F and 0xFF (NaN), which no weight uses, read ±480. `offsets` uint32 [N] are where the header
    of a BF12 row begins; such a part is made after all cutting.
    """

    form: Form
    data: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None = None
    multiplier: float = 1.0
    block: tuple[int, int] = (1, 1)
    offsets: npt.NDArray[np.uint32] | None = None

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def columns(self) -> int:
        code = LAYOUTS[self.form].code
        return int(self.data.shape[1]) * self.data.itemsize * 8 // code.bits

    def cut_rows(self, first: int, count: int) -> Part:
        """Rows first … first + count − 1. A grid that the cut does not fit gets finer blocks, whose
        scales repeat. Raises ValueError beyond the part."""
        whole = first >= 0 and first + count <= self.rows and self.offsets is None
        _require(whole, f"{self.rows} rows", first, count)
        rows = slice(first, first + count)
        if self.scale is None or not LAYOUTS[self.form].grid:
            scale = None if self.scale is None else self.scale[rows]
            return replace(self, data=self.data[rows], scale=scale)
        high, wide = self.block
        fine = math.gcd(high, first)
        lines = (first + fine * np.arange(-(-count // fine))) // high
        return replace(self, data=self.data[rows], scale=self.scale[lines], block=(fine, wide))

    def cut_columns(self, first: int, count: int) -> Part:
        """Columns first … first + count − 1; both must be whole groups of the form (ValueError),
        save that the last column may be the part's own last."""
        _require(first >= 0 and first + count <= self.columns, f"{self.columns} columns", first,
                 count)  # fmt: skip
        layout = LAYOUTS[self.form]
        _require(self.offsets is None, "rows with headers", first, count)
        step = max(layout.group, 1, 8 // layout.code.bits)
        whole = first % step == 0 and (count % step == 0 or first + count == self.columns)
        _require(whole, f"groups of {step} columns", first, count)
        begin, end = (at * layout.code.bits // (8 * self.data.itemsize)
                      for at in (first, first + count))  # fmt: skip
        data = self.data[:, begin:end]
        if self.scale is None or not layout.group:
            return replace(self, data=data)
        if not layout.grid:
            groups = slice(first // layout.group, -(-(first + count) // layout.group))
            return replace(self, data=data, scale=self.scale[:, groups])
        high, wide = self.block
        fine = math.gcd(wide, first)
        lines = (first + fine * np.arange(-(-count // fine))) // wide
        return replace(self, data=data, scale=self.scale[:, lines], block=(high, fine))


def _require(held: bool, of: str, first: int, count: int) -> None:
    if not held:
        message = f"{first} … {first + count - 1} is no cut of {of}"
        raise ValueError(message)


def dummy_part(form: Form, rows: int, columns: int, seed: int | tuple[int, ...]) -> Part:
    """Seeded random values of deviation about DUMMY_DEVIATION in a checkpoint's form."""
    rng = np.random.default_rng(seed)
    layout = LAYOUTS[form]
    if form is Form.BF12:
        raise ValueError("BF12 is made of values, not of dummies")
    if layout.code is Code.F32:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(DUMMY_DEVIATION)
        return Part(form, values)
    if layout.code is Code.BF16:
        return Part(form, _uniform_bf16(rng, rows * columns).reshape(rows, columns))
    each = layout.code_bytes(columns)
    data = _random_bytes(rng, rows * each).reshape(rows, each)
    if layout.code is Code.E4M3:
        # Magnitudes 1 … 1.875, either sign: no NaN, no outlier.
        data &= 0x87
        data |= 0x38
    one = np.float32(DUMMY_DEVIATION / _CODE_DEVIATION[layout.code])
    if form is Form.NVFP4:
        scale = rng.integers(0x38, 0x40, (rows, columns // layout.group), np.uint8)
        return Part(form, data, scale, float(one) / _SCALE_DEVIATION)
    if form is Form.FP8_CHANNEL:
        return Part(form, data, np.full((rows, 1), one))
    if form is Form.FP8_BLOCK:
        block = (FP8_BLOCK_ROWS, FP8_BLOCK_ROWS)
        grid = (-(-rows // block[0]), -(-columns // block[1]))
        return Part(form, data, np.full(grid, one), block=block)
    return Part(form, data, _scales_of(layout.scale, one, (rows, columns // layout.group)))


def _random_bytes(rng: np.random.Generator, size: int) -> npt.NDArray[np.uint8]:
    """Eight at a time, which takes an eighth of the time."""
    return rng.integers(0, 1 << 64, -(-size // 8), np.uint64).view(np.uint8)[:size]


def _uniform_bf16(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint16]:
    """bf16 bits of values within DUMMY_DEVIATION · √3 of zero, all as likely: they are made in a
    twentieth of the time of normal ones."""
    found = np.empty(count, np.uint16)
    step = np.float32(DUMMY_DEVIATION * math.sqrt(3.0) / (1 << 15))
    values = np.empty(_AT_ONCE, np.float32)
    # bf16 is float32's upper half, which stands behind the lower one.
    upper = values.view(np.uint16)[1::2]
    for first in range(0, count, _AT_ONCE):
        some = found[first : first + _AT_ONCE]
        steps = _random_bytes(rng, 2 * some.size).view(np.int16)
        np.multiply(steps, step, out=values[: some.size])
        some[...] = upper[: some.size]
    return found


_AT_ONCE = 1 << 16
"""Random values that are made at once: they stay in a processor's cache."""
_SCALE_DEVIATION = 1.4
"""Of the e4m3 codes 0x38 … 0x3F, about."""
_CODE_DEVIATION = {Code.E4M3: 1.45, Code.E2M1: 3.0, Code.INT4: 4.6, Code.INT8: 74.0}


def _scales_of(kind: Scale, value: np.float32, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Scales all near `value`, as `kind` writes them."""
    if kind is Scale.E8M0:
        return np.full(shape, round(127 + math.log2(value)), np.uint8)
    if kind is Scale.F16:
        return np.full(shape, value, np.float16)
    return np.full(shape, int(value.view(np.uint32)) >> 16, np.uint16)


def matrix_bytes(form: Form, rows: int, columns: int) -> int:
    """Bytes of a matrix [rows, columns] as a backend holds it, K padded to whole vectors."""
    layout = LAYOUTS[form]
    padded = -(-columns // VECTOR) * VECTOR
    size = rows * layout.code_bytes(padded)
    if layout.scale is not Scale.NONE:
        lines = -(-rows // FP8_BLOCK_ROWS) if layout.grid else rows
        size += lines * layout.scales(padded) * layout.scale.dtype.itemsize
    if form is Form.BF12:
        size += BF12_HEADER * rows
    return size + 4 * rows * (layout.factor or layout.indexed)
