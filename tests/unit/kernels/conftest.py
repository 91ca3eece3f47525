"""One backend of each kind for all kernel tests."""

from __future__ import annotations

import pytest
from kernel_oracles import CAPACITY

from kernels_numba.backend import Backend


@pytest.fixture(scope="session")
def backend(backend_name: str) -> Backend:
    if backend_name == "cuda":
        from kernels_numba.gpu.backend import CudaBackend

        return CudaBackend(CAPACITY)
    from kernels_numba.cpu.backend import CpuBackend

    return CpuBackend(CAPACITY, 2)
