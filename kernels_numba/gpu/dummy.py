"""Seeded random weights, for measuring a model's speed without its files."""

from __future__ import annotations

from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import FACTOR_SCALE, CudaMatrix
from kernels_numba.gpu.source import RANDOM
from kernels_numba.weights import DUMMY_DEVIATION, Form

BLOCKS, THREADS = 4096, 256
SCALE_LOW, SCALE_SPAN = 0x38, 8
"""e4m3 codes 1 … 1.875."""
CODE_DEVIATION = 3.0 * 1.4
"""Of a random e2m1 code times a random scale, about."""


def dummy_matrix(kernels: Kernels, form: Form, rows: int, columns: int, seed: int) -> CudaMatrix:
    """Values of deviation DUMMY_DEVIATION; the padding of K stays zero."""
    matrix = CudaMatrix(form, rows, columns)
    data, scale = matrix.data, matrix.scale
    if form is Form.BF16:
        arguments = (int(data.data.ptr), data.size, seed, DUMMY_DEVIATION)
        kernels.launch(RANDOM, "fill_bf16", (BLOCKS,), THREADS, arguments)
        data[:, columns:] = 0
        return matrix
    codes = (int(data.data.ptr), data.size, seed, 0, 256)
    scales = (int(scale.data.ptr), scale.size, seed + 1, SCALE_LOW, SCALE_SPAN)
    kernels.launch(RANDOM, "fill_bytes", (BLOCKS,), THREADS, codes)
    kernels.launch(RANDOM, "fill_bytes", (BLOCKS,), THREADS, scales)
    scale[:, columns // 16 :] = 0
    matrix.factors.fill(FACTOR_SCALE * DUMMY_DEVIATION / CODE_DEVIATION)
    return matrix
