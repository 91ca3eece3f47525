"""One backend of each kind for all kernel tests."""

from __future__ import annotations

import pytest
from kernel_oracles import CAPACITY

from kernels_numba.backend import Backend
from kernels_numba.extended import ExtendedBackend


@pytest.fixture(scope="session")
def backend(backend_name: str) -> Backend:
    if backend_name == "cuda":
        from kernels_numba.gpu.backend import CudaBackend

        return CudaBackend(CAPACITY)
    from kernels_numba.cpu.backend import CpuBackend

    return CpuBackend(CAPACITY, 2)


@pytest.fixture
def extended(backend: Backend) -> ExtendedBackend:
    """The backend, where it has the operations that reach back into a request."""
    if not isinstance(backend, ExtendedBackend):
        pytest.skip(f"the {backend.name} backend has no windows, convolutions or recurrences")
    return backend
