"""A rank in a process of its own: `python toy_rank.py FD RANK WORLD [STEPS]`.

Gathers step after step (for ever without STEPS), a line on standard output after the first, and at
the end the median seconds of one.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from dgpp.errors import DgppError
from dgpp.net.shm import ShmCollective
from kernels_numba.cpu.memory import Block


def main(fd: int, rank: int, world: int, steps: int = 0) -> None:
    collective = ShmCollective(fd, rank, world)
    collective.join(60)
    collective.serve()
    part, out = (Block(np.ones((1, 5120), np.float32)) for _ in range(2))
    collective.all_reduce(1, part, out)
    print("running", flush=True)
    times = []
    while not steps or len(times) < steps:
        began = time.perf_counter()
        collective.all_reduce(1, part, out)
        if steps:
            times.append(time.perf_counter() - began)
        else:
            time.sleep(0.005)
    print(statistics.median(times), flush=True)
    collective.close()


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except DgppError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(error.exit_status)
