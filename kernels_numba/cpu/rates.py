"""What this host reads and multiplies per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kernels_numba.cpu.bandwidth import reader

READ_BYTES = 256 << 20
COLUMNS = 2048
DEPTH = 2048
FEWEST = 256
"""Rows of a thread's product: fewer would measure how threads start."""
REPEATS = 9


def _fastest_half(call: Callable[[], object]) -> float:
    """Median seconds of the faster half of the calls: others take the machine now and then."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(sorted(times)[: REPEATS // 2 + 1])


class CpuYardstick:
    """Implements `kernels_numba.rates.Yardstick` for `threads` threads."""

    bandwidth_name = "read"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.product_name = f"float32 product (BLAS, {threads} threads)"

    def bandwidth(self) -> float:
        """Bytes read per second by the kernels' own threads."""
        read = reader(READ_BYTES, self._threads)
        size = read()
        return size / _fastest_half(read)

    def product(self, rows: int) -> float:
        """Each thread multiplies its share of the rows; needs a BLAS of one thread a call."""
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((DEPTH, COLUMNS), np.float32)
        share = max(FEWEST, rows // self._threads)
        inputs = [rng.standard_normal((share, DEPTH), np.float32) for _ in range(self._threads)]
        outputs = [np.empty((share, COLUMNS), np.float32) for _ in inputs]
        with ThreadPoolExecutor(self._threads) as pool:

            def once() -> None:
                list(pool.map(lambda x, out: np.matmul(x, weights, out), inputs, outputs))

            once()
            seconds = _fastest_half(once)
        return 2.0 * share * self._threads * DEPTH * COLUMNS / seconds
