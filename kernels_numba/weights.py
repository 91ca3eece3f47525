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


class Code(enum.Enum):
    """One value before its scale, and its bits. e2m1 and e4m3 are the OCP formats; two codes of
    four bits share a byte, the even element in the low half."""

    F32 = 32
    BF16 = 16
    E4M3 = 8
    E2M1 = 4


class Scale(enum.Enum):
    """How a scale is written where the kernels read it, in bytes."""

    NONE = "none"
    F32 = "f32"
    E4M3 = "e4m3"

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32 if self is Scale.F32 else np.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """value = code · scale (· factor), in float32.

    `group` consecutive values of a row share a scale. With `grid` a block of rows shares its line
    of scales; otherwise every row has its own. `factor`: one float32 per row multiplies its scales.
    """

    code: Code
    scale: Scale = Scale.NONE
    group: int = 0
    grid: bool = False
    factor: bool = False

    def code_bytes(self, columns: int) -> int:
        return columns * self.code.value // 8


FP8_GROUP = 32
"""Columns per scale that kernels read of an FP8 grid: grids of larger blocks repeat their scales,
so one kernel reads every grid, also one that was cut for a rank."""
FP8_BLOCK_ROWS = 128

LAYOUTS = {
    Form.F32: Layout(Code.F32),
    Form.BF16: Layout(Code.BF16),
    Form.NVFP4: Layout(Code.E2M1, Scale.E4M3, 16, factor=True),
    Form.FP8_BLOCK: Layout(Code.E4M3, Scale.F32, FP8_GROUP, grid=True),
}

DUMMY_DEVIATION = 0.02
"""Standard deviation of random weights."""
VECTOR = 16
"""Values per step of every dot product: K is padded to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one matrix in checkpoint form; parts stacked along N make a `Matrix`.

    form       data                   scale                      value
    F32        float32 [N, K]         -                          data
    BF16       uint16 [N, K] (bits)   -                          data
    NVFP4      uint8 [N, K/2]         uint8 [N, K/16] (e4m3)     code · (scale · multiplier)
    FP8_BLOCK  uint8 [N, K] (e4m3)    float32 [⌈N/R⌉, ⌈K/C⌉]     code · scale; block = (R, C)

    `block` is (128, 128) in checkpoints, (32, 32) in some; C is a multiple of 32. The codes 0x7F
    and 0xFF (NaN), which no weight uses, read ±480.
    """

    form: Form
    data: npt.NDArray[Any]
    scale: npt.NDArray[Any] | None = None
    multiplier: float = 1.0
    block: tuple[int, int] = (1, 1)

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def columns(self) -> int:
        return int(self.data.shape[1]) * (2 if LAYOUTS[self.form].code.value == 4 else 1)

    def cut_rows(self, first: int, count: int) -> Part:
        """Rows first … first + count − 1. A grid that the cut does not fit gets finer blocks, whose
        scales repeat. Raises ValueError beyond the part."""
        _require(first >= 0 and first + count <= self.rows, f"{self.rows} rows", first, count)
        data = self.data[first : first + count]
        if self.scale is None:
            return replace(self, data=data)
        if not LAYOUTS[self.form].grid:
            return replace(self, data=data, scale=self.scale[first : first + count])
        high, wide = self.block
        fine = math.gcd(high, first)
        lines = (first + fine * np.arange(-(-count // fine))) // high
        return replace(self, data=data, scale=self.scale[lines], block=(fine, wide))

    def cut_columns(self, first: int, count: int) -> Part:
        """Columns first … first + count − 1; both must be whole groups of the form (ValueError),
        save that the last column may be the part's own last."""
        _require(first >= 0 and first + count <= self.columns, f"{self.columns} columns", first,
                 count)  # fmt: skip
        layout = LAYOUTS[self.form]
        step = max(layout.group, 1, 8 // layout.code.value)
        whole = first % step == 0 and (count % step == 0 or first + count == self.columns)
        _require(whole, f"groups of {step} columns", first, count)
        begin, end = (at * layout.code.value // (8 * self.data.itemsize)
                      for at in (first, first + count))  # fmt: skip
        data = self.data[:, begin:end]
        if self.scale is None:
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


def dummy_part(form: Form, rows: int, columns: int, seed: int) -> Part:
    """Seeded random values of deviation about DUMMY_DEVIATION in a checkpoint's form."""
    rng = np.random.default_rng(seed)
    if form is Form.NVFP4:
        data = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        scale = rng.integers(0x38, 0x40, (rows, columns // 16), np.uint8)
        return Part(form, data, scale, DUMMY_DEVIATION / 4)
    if form is Form.FP8_BLOCK:
        # Codes of magnitude 1 … 1.875, either sign.
        data = rng.integers(0x38, 0x40, (rows, columns), np.uint8)
        data |= rng.integers(0, 2, (rows, columns), np.uint8) << 7
        grid = (-(-rows // 128), -(-columns // 128))
        return Part(form, data, np.full(grid, DUMMY_DEVIATION, np.float32), block=(128, 128))
    values = rng.standard_normal((rows, columns), np.float32) * np.float32(DUMMY_DEVIATION)
    if form is Form.F32:
        return Part(form, values)
    return Part(form, (values.view(np.uint32) >> 16).astype(np.uint16))


def matrix_bytes(form: Form, rows: int, columns: int) -> int:
    """Bytes of a matrix [rows, columns] as a backend holds it, K padded to whole vectors."""
    layout = LAYOUTS[form]
    padded = -(-columns // VECTOR) * VECTOR
    size = rows * layout.code_bytes(padded)
    if layout.scale is not Scale.NONE:
        lines = -(-rows // FP8_BLOCK_ROWS) if layout.grid else rows
        size += lines * -(-padded // layout.group) * layout.scale.dtype.itemsize
    return size + 4 * rows * (layout.factor or layout.grid)
