"""The sizes of a model that the kernels take on a device."""

from __future__ import annotations

from typing import NamedTuple

from kernels_numba.gpu.device import MOST_SHARED, Device
from kernels_numba.gpu.experts import MOST_TOP, most_experts
from kernels_numba.gpu.memory import CHUNK, LINE_ROWS
from kernels_numba.gpu.picker import MOST_IDS
from kernels_numba.gpu.plane import HEAD_MULTIPLE, most_head
from kernels_numba.gpu.project import BLOCK_ROWS, MOST_BYTES
from kernels_numba.gpu.ranks import SUM_STEP
from kernels_numba.weights import LAYOUTS, Form

GRID = 65535
"""Blocks of a launch in its second dimension, at most."""
HOPPER = (9, 0)


class KernelLimits(NamedTuple):
    """The most `experts` to choose from, `top` of them for a token, values of a `head`, `ids` of a
    rank's slice of the vocabulary, and `rows` and `matrix_bytes` (None: any number) of one dense
    matrix or one expert's. Values of a head are multiples of `head_step`, those of rows that ranks
    sum of `sum_step`; rows of FP8 that others follow in one matrix, each expert's too, of
    `fp8_step`."""

    experts: int
    top: int
    head: int
    head_step: int
    ids: int
    sum_step: int
    rows: int
    matrix_bytes: int | None
    fp8_step: int

    def holds(self, form: Form, rows: int, columns: int) -> bool:
        """Whether the kernels multiply a matrix of these sizes by many rows at once."""
        chunk = CHUNK[form]
        size = rows * LAYOUTS[form].code_bytes(-(-columns // chunk) * chunk)
        return rows <= self.rows and (self.matrix_bytes is None or size <= self.matrix_bytes)


def limits_of(device: Device | None) -> KernelLimits:
    """Of `device`; without one, what some device takes."""
    shared = MOST_SHARED if device is None else device.shared
    return KernelLimits(
        experts=most_experts(shared),
        top=MOST_TOP,
        head=most_head(shared),
        head_step=HEAD_MULTIPLE,
        ids=MOST_IDS,
        sum_step=SUM_STEP,
        rows=GRID * BLOCK_ROWS,
        # Hopper's own kernel of many rows counts in boxes.
        matrix_bytes=None if device is None or device.architecture == HOPPER else MOST_BYTES,
        fp8_step=LINE_ROWS,
    )
