"""How long a rank polls before it sleeps."""

from __future__ import annotations

import os
import time

import numpy as np

from kernels_numba.cpu import exchange
from kernels_numba.meeting import LINE_BYTES

SPIN_US = 20.0
_SPINS = 2000


def spins_of(pollers: int) -> int:
    """Looks that take about SPIN_US; none where `pollers` processes that poll at once have no CPU
    each: there a spin holds up whoever is waited for."""
    if len(os.sched_getaffinity(0)) < pollers:
        return 0
    line = np.zeros(LINE_BYTES // 8, np.int64)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        exchange.missing(int(line.ctypes.data), 1, 1, _SPINS)
        times.append(time.perf_counter() - began)
    return max(1, int(_SPINS * SPIN_US * 1e-6 / min(times)))
