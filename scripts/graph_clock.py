"""Work of a GPU's stream, recorded once and replayed for the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels_numba.gpu.device import load_cupy


def recorded(stream: Any, enqueue: Callable[[], None]) -> Callable[[int], float]:
    """Seconds per replay, of so many, of what `enqueue` puts on `stream`, the current one."""
    cupy = load_cupy()
    stream.synchronize()
    stream.begin_capture()
    enqueue()
    graph = stream.end_capture()

    def replay(times: int) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        graph.launch(stream)
        start.record(stream)
        for _ in range(times):
            graph.launch(stream)
        end.record(stream)
        end.synchronize()
        return cupy.cuda.get_elapsed_time(start, end) / 1e3 / times

    return replay
