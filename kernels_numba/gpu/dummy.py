"""Seeded random weights, for measuring a model's speed without its files."""

from __future__ import annotations

from typing import Any

from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import FACTOR_SCALE, FP8_GROUPS, CudaMatrix
from kernels_numba.gpu.source import RANDOM
from kernels_numba.weights import DUMMY_DEVIATION, LAYOUTS, Form

BLOCKS, THREADS = 4096, 256
CODE_LOW, CODE_SPAN = 0x38, 8
"""e4m3 codes 1 … 1.875."""
E4M3_DEVIATION = 1.47
"""Of such a code of either sign."""
E2M1_DEVIATION = 3.0 * 1.4
"""Of a random e2m1 code times such a scale, about."""


def dummy_matrix(
    kernels: Kernels, form: Form, rows: int, columns: int, seed: int, multiple: int = 1
) -> CudaMatrix:
    """Values of deviation DUMMY_DEVIATION; the padding of K stays zero."""
    group = FP8_GROUPS[0] if LAYOUTS[form].grid else 0
    matrix = CudaMatrix(form, rows, columns, group, multiple=multiple)
    data, scale = matrix.data, matrix.scale

    def launch(name: str, array: Any, seed: int, *more: float) -> None:
        blocks = min(BLOCKS, -(-array.size // THREADS))
        arguments = (int(array.data.ptr), array.size, seed, *more)
        kernels.launch(RANDOM, name, (blocks,), THREADS, arguments)

    def fill(array: Any, salt: int, low: int, span: int, signs: int) -> None:
        launch("fill_bytes", array, seed + salt, low, span, signs)

    if form is Form.BF16:
        launch("fill_bf16", data, seed, DUMMY_DEVIATION)
        data[:, columns:] = 0
    elif form is Form.FP8_BLOCK:
        fill(data, 0, CODE_LOW, CODE_SPAN, 0x80)
        data[:, columns:] = 0
        scale.fill(DUMMY_DEVIATION / E4M3_DEVIATION)
    else:
        fill(data, 0, 0, 256, 0)
        fill(scale, 1, CODE_LOW, CODE_SPAN, 0)
        scale[:, columns // 16 :] = 0
        matrix.factors.fill(FACTOR_SCALE * DUMMY_DEVIATION / E2M1_DEVIATION)
    return matrix
