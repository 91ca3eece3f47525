"""How fast this machine reads memory, by the kernels' own threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_numba.cpu.tiles import COLUMNS, dot_line
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import Form

BF16 = int(Form.BF16)
ROW_BYTES = 1 << 10
BLOCK_ROWS = 1 << 10


@kernel(parallel=True)
def stream(data: int, size: int, ones: int, sinks: int, sink_stride: int) -> None:
    """Read `size` bytes at `data` once, as if they were bf16 rows, in address order."""
    block = ROW_BYTES * BLOCK_ROWS
    for part in prange(size // block):
        sink = sinks + get_thread_id() * sink_stride
        for row in range(0, BLOCK_ROWS, COLUMNS):
            dot_line(BF16, ones, 0, 0, COLUMNS - 1, data + part * block + row * ROW_BYTES,
                     ROW_BYTES, 0, 0, 0, ROW_BYTES // 2, sink, 0)  # fmt: skip


def reader(size: int, threads: int) -> Callable[[], int]:
    """A call that streams about `size` bytes once and returns how many it read."""
    data = np.zeros(size // 2, np.uint16)
    data[:] = 0x3F80
    ones = np.ones(ROW_BYTES // 2, np.float32)
    sinks = np.zeros((max(threads, 1) + 1, 64), np.float32)
    read = size // (ROW_BYTES * BLOCK_ROWS) * ROW_BYTES * BLOCK_ROWS

    def once() -> int:
        stream(int(data.ctypes.data), read, int(ones.ctypes.data), int(sinks.ctypes.data), 256)
        return read

    return once
