"""What the CPU backend keeps beside a step's rows."""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import Rows


class RowHandle:
    """The addresses of a `Rows`, looked up once, and where its runs of rows begin.

    starts  int32 [capacity]: the first row from which positions of one slot lead to this one's
            without a gap
    """

    __slots__ = ("metadata", "starts", "starts_at", "tokens")

    def __init__(self, rows: Rows) -> None:
        self.tokens = int(rows.tokens.ctypes.data)
        self.starts = np.zeros(rows.capacity, np.int32)
        self.starts_at = int(self.starts.ctypes.data)
        self.metadata = (
            int(rows.positions.ctypes.data),
            int(rows.slots.ctypes.data),
            int(rows.tables.ctypes.data),
            int(rows.tables.shape[1]),
        )

    def find_runs(self, rows: Rows) -> None:
        count = rows.count
        slots, positions = rows.slots[:count], rows.positions[:count]
        firsts = np.arange(count, dtype=np.int32)
        follows = (slots[1:] == slots[:-1]) & (positions[1:] == positions[:-1] + 1)
        firsts[1:][follows] = 0
        np.maximum.accumulate(firsts, out=self.starts[:count])
