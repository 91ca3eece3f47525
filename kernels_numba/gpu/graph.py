"""Recorded steps: what a decode step enqueues, replayed as one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kernels_numba.gpu.device import load_cupy

FIRST_REACH = 1024
REACH_FACTOR = 4


def reaches(ceiling: int) -> list[int]:
    """Position limits that steps are recorded for, ascending, the last one `ceiling`.

    Grids of attention cover the limit, and blocks beyond a row's position end at once: a factor
    between two limits costs less than a graph for each.
    """
    limits = []
    reach = FIRST_REACH
    while reach < ceiling:
        limits.append(reach)
        reach *= REACH_FACTOR
    return [*limits, ceiling]


class StepGraphs:
    """Graphs by step and rows, and by reach. `bytes` and `seconds` are what recording has taken."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._graphs: dict[tuple[int, int], dict[int, Any]] = {}
        self.bytes = 0
        self.seconds = 0.0

    def __len__(self) -> int:
        return sum(len(by_reach) for by_reach in self._graphs.values())

    def record(self, key: tuple[int, int], reach: int, step: Callable[[], None]) -> None:
        """Record what `step` enqueues on the stream; nothing of it runs. All scratch that it uses
        must be there already."""
        runtime = load_cupy().cuda.runtime
        began, free = time.monotonic(), runtime.memGetInfo()[0]
        self._stream.synchronize()
        self._stream.begin_capture()
        try:
            step()
        finally:
            # Also where a step fails: a stream that captures would swallow all that comes after.
            graph = self._stream.end_capture()
        graph.upload(self._stream)
        self._stream.synchronize()
        self._graphs.setdefault(key, {})[reach] = graph
        self.bytes += max(0, free - runtime.memGetInfo()[0])
        self.seconds += time.monotonic() - began

    def replay(self, key: tuple[int, int], reach: int) -> bool:
        """Enqueue the graph of this step and number of rows with the least limit that holds
        `reach`."""
        for limit, graph in self._graphs.get(key, {}).items():
            if reach <= limit:
                graph.launch(self._stream)
                return True
        return False
