"""The yardstick of the machine that a backend runs on."""

from __future__ import annotations

from kernels_numba.rates import Yardstick


def yardstick(backend: str, *, threads: int, device: int) -> Yardstick:
    """Libraries load only for the backend that is measured."""
    if backend == "cuda":
        from kernels_numba.gpu.rates import CudaYardstick

        return CudaYardstick(device)
    from kernels_numba.cpu.rates import CpuYardstick

    return CpuYardstick(threads)
