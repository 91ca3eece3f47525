"""What the CPU backend keeps beside a step's rows."""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import Rows


class RowHandle:
    """The addresses of a `Rows`, looked up once, and where its runs of rows begin.

    A run is rows of one slot at positions without a gap.

    starts  int32 [capacity]: the first row of each row's run
    ends    int32 [capacity]: the last row of each row's run
    runs    int32 [run_count + 1]: the first row of each run, then the number of rows
    """

    __slots__ = (
        "ends",
        "ends_at",
        "floors_at",
        "metadata",
        "run_count",
        "runs",
        "runs_at",
        "starts",
        "starts_at",
        "tokens",
    )

    def __init__(self, rows: Rows) -> None:
        self.tokens = int(rows.tokens.ctypes.data)
        self.starts = np.zeros(rows.capacity, np.int32)
        self.starts_at = int(self.starts.ctypes.data)
        self.ends = np.zeros(rows.capacity, np.int32)
        self.ends_at = int(self.ends.ctypes.data)
        self.runs = np.zeros(rows.capacity + 1, np.int32)
        self.runs_at = int(self.runs.ctypes.data)
        self.floors_at = int(rows.floors.ctypes.data)
        self.run_count = 0
        self.metadata = (
            int(rows.positions.ctypes.data),
            int(rows.slots.ctypes.data),
            int(rows.tables.ctypes.data),
            int(rows.tables.shape[1]),
        )

    def find_runs(self, rows: Rows) -> None:
        count = rows.count
        slots, positions = rows.slots[:count], rows.positions[:count]
        begins = np.ones(count, np.bool_)
        begins[1:] = (slots[1:] != slots[:-1]) | (positions[1:] != positions[:-1] + 1)
        firsts = np.flatnonzero(begins)
        self.run_count = firsts.size
        self.runs[: firsts.size] = firsts
        self.runs[firsts.size] = count
        np.maximum.accumulate(np.arange(count) * begins, out=self.starts[:count])
        bounds = self.runs[: firsts.size + 1]
        self.ends[:count] = np.repeat(bounds[1:] - 1, np.diff(bounds))
