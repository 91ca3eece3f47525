"""What this GPU copies and multiplies per second, warmed up as a server is."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from kernels_numba.gpu.device import load_cupy, open_device
from kernels_numba.gpu.dummy import dummy_matrix
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.weights import Form

COPY_BYTES = 4 << 30
COLUMNS, DEPTH = 17408, 5120
OPERANDS = 3
REPEATS, LAUNCHES = 9, 4
WARM_S = 0.3
"""A cold card multiplies faster than it can for long."""
BF16, F32, COMPUTE_F32, DEFAULT = 14, 0, 68, -1
"""cuBLAS's own codes: CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT."""


class CudaYardstick:
    """Implements `kernels_numba.rates.Yardstick` for one device."""

    bandwidth_name = "copy"
    product_name = "bf16 product (cuBLAS)"

    def __init__(self, device: int = 0) -> None:
        self._device = open_device(device)
        self._cupy = load_cupy()

    def bandwidth(self) -> float:
        """Bytes read and written per second by a copy from device to device."""
        cupy = self._cupy
        size = min(COPY_BYTES, self._device.free_bytes // 4)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            source, target = cupy.zeros(size, cupy.uint8), cupy.empty(size, cupy.uint8)
            copy = partial(target.data.copy_from_device_async, source.data, size, stream)
            seconds = self._median(copy)
            del source, target, copy
        cupy.get_default_memory_pool().free_all_blocks()
        return float(2 * size / seconds)

    def product(self, rows: int) -> float | None:
        """bf16 operands, float32 sums, rows × 5120 × 17408; None without cuBLAS."""
        try:
            from cupy_backends.cuda.libs import cublas
        except ImportError:
            return None
        cupy = self._cupy
        with cupy.cuda.Stream(non_blocking=True):
            kernels = Kernels()
            weights = [
                dummy_matrix(kernels, Form.BF16, COLUMNS, DEPTH, n).data for n in range(OPERANDS)
            ]
            inputs = dummy_matrix(kernels, Form.BF16, rows, DEPTH, OPERANDS).data
            out = cupy.empty((rows, COLUMNS), cupy.uint16)
            call = _product_call(cupy, cublas, weights, inputs, out)
            seconds = self._median(call)
            del weights, inputs, out, call
        cupy.get_default_memory_pool().free_all_blocks()
        return 2.0 * rows * COLUMNS * DEPTH / seconds

    def _median(self, call: Callable[[], object]) -> float:
        """Seconds of one call, by the device's own clock, once it is warm."""
        cupy = self._cupy
        start, end = cupy.cuda.Event(), cupy.cuda.Event()

        def timed(times: int) -> float:
            start.record()
            for _ in range(times):
                call()
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3

        once = timed(1) and timed(1)
        timed(max(1, int(WARM_S / once)))
        return statistics.median(timed(LAUNCHES) for _ in range(REPEATS)) / LAUNCHES


def _product_call(
    cupy: Any, cublas: Any, weights: list[Any], inputs: Any, out: Any
) -> Callable[[], None]:
    """out = inputs · weightsᵀ, the weights in rotation. cuBLAS counts columns first: it computes
    outᵀ = weights · inputsᵀ on rows that lie as they are."""
    import numpy as np

    handle = cupy.cuda.device.get_cublas_handle()
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    rows = inputs.shape[0]
    turn = [0]

    def call() -> None:
        matrix = weights[turn[0] % len(weights)]
        turn[0] += 1
        cublas.gemmEx(
            handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, COLUMNS, rows, DEPTH,
            one.ctypes.data, matrix.data.ptr, BF16, DEPTH, inputs.data.ptr, BF16, DEPTH,
            zero.ctypes.data, out.data.ptr, BF16, COLUMNS, COMPUTE_F32, DEFAULT,
        )  # fmt: skip

    return call
