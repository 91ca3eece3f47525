"""Projections alone on this GPU, beside a copy and a product of the same run.

usage: python scripts/bench_cuda.py [--forms BF16,NVFP4] [--rows 1,8,16,2048] [--json FILE]

Matrices that exceed the L2 together are read in rotation, replayed as one CUDA graph of as many
products as a step has, so that the start of a graph is not taken for theirs. Up to 64 rows the
bytes of the weights count, above the floating point operations. Whole models: `dgpp bench`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command_line import Options, ended
from graph_clock import recorded

from kernels_numba.gpu.backend import CudaBackend
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.memory import CHUNK
from kernels_numba.gpu.rates import CudaYardstick
from kernels_numba.weights import Form

SHAPES = ((17408, 5120), (5120, 17408), (5120, 6144), (248320, 5120), (1536, 5120))
L2_TIMES = 6 * 60 << 20
PRODUCTS = 48
"""Of a graph, at least."""
FEW = 64


def replayed(backend: CudaBackend, calls: list[Callable[[], None]]) -> Callable[[int], float]:
    """Seconds per replay of what `calls` enqueue, as one graph."""

    def enqueue() -> None:
        for call in calls:
            call()

    with backend._stream:
        # Kernels are compiled and scratch is taken before the stream is recorded.
        enqueue()
        return recorded(backend._stream, enqueue)


def measure(form: Form, n: int, k: int, counts: Sequence[int], copy: float) -> list[dict[str, Any]]:
    """One shape for each number of rows."""
    backend, products = CudaBackend(max(counts)), CudaYardstick()
    one = backend.dummy(form, n, k, 1)
    number = max(1, -(-L2_TIMES // one.nbytes))
    matrices = [one, *(backend.dummy(form, n, k, seed) for seed in range(2, number + 1))]
    x, out = backend.tensor(k), backend.tensor(n, wide=True)
    x.set(np.random.default_rng(0).standard_normal((max(counts), k)).astype(np.float32))
    rows = backend.rows(1, 1)
    results = []
    for count in counts:
        rows.count = count
        backend.begin(rows)
        calls = [partial(backend.linear, rows, x, matrix, out) for matrix in matrices]
        calls *= -(-PRODUCTS // len(calls))
        replay = replayed(backend, calls)
        seconds = statistics.median(replay(5) for _ in range(5)) / len(calls)
        result = {"form": form.name, "shape": f"{n}x{k}", "rows": count, "us": seconds * 1e6}
        if count <= FEW:
            result["of_copy"] = one.nbytes / seconds / copy
        else:
            rate = 2.0 * n * k * count / seconds
            result |= {"tflops": rate / 1e12, "of_product": rate / (products.product(count) or 1)}
        results.append(result)
    return results


def show(result: dict[str, Any]) -> None:
    shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items())
    print("  ".join(shown), flush=True)


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_names("--forms", "BF16,NVFP4", [form.name for form in CHUNK])
    parser.add_numbers("--rows", "1,8,16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    copy = CudaYardstick().bandwidth()
    print(f"device copy {copy / 1e12:.3f} TB/s", flush=True)
    results: list[dict[str, Any]] = [{"part": "copy", "bytes_per_second": copy}]
    for name in options.forms:
        for n, k in SHAPES:
            found = measure(Form[name], n, k, options.rows, copy)
            for result in found:
                show(result)
            results += found
            load_cupy().get_default_memory_pool().free_all_blocks()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    ended(main)
