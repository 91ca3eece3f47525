"""The forms in which weights lie, and one matrix part as a checkpoint stores it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


class Form(enum.IntEnum):
    """How a matrix's values are written. The ordinals are the kernels' format codes."""

    F32 = 0
    BF16 = 1
    NVFP4 = 2


DUMMY_DEVIATION = 0.02
"""Standard deviation of random weights."""
VECTOR = 16
"""Values per step of every dot product: K is padded to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one matrix in checkpoint form; parts stacked along N make a `Matrix`.

    form   data                     scale                    multiplier
    F32    float32 [N, K]           -                        -
    BF16   uint16 [N, K] (bits)     -                        -
    NVFP4  uint8 [N, K/2], low      uint8 [N, K/16] (e4m3    value = code · (scale · multiplier),
           nibble = even element    bits)                    float32
    """

    form: Form
    data: npt.NDArray[Any]
    scale: npt.NDArray[np.uint8] | None = None
    multiplier: float = 1.0

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @property
    def columns(self) -> int:
        return int(self.data.shape[1]) * (2 if self.form is Form.NVFP4 else 1)


def dummy_part(form: Form, rows: int, columns: int, seed: int) -> Part:
    """Seeded random values of deviation DUMMY_DEVIATION in a checkpoint's form."""
    rng = np.random.default_rng(seed)
    if form is Form.NVFP4:
        data = rng.integers(0, 256, (rows, columns // 2), np.uint8)
        scale = rng.integers(0x38, 0x40, (rows, columns // 16), np.uint8)
        return Part(form, data, scale, DUMMY_DEVIATION / 4)
    values = rng.standard_normal((rows, columns), np.float32) * np.float32(DUMMY_DEVIATION)
    if form is Form.F32:
        return Part(form, values)
    return Part(form, (values.view(np.uint32) >> 16).astype(np.uint16))


def row_bytes(form: Form, columns: int) -> tuple[int, int, int]:
    """Bytes of one row's (data, scale, multiplier) as a backend holds them."""
    padded = -(-columns // VECTOR) * VECTOR
    if form is Form.F32:
        return 4 * padded, 0, 0
    if form is Form.BF16:
        return 2 * padded, 0, 0
    return padded // 2, padded // 16, 4
