"""One backend for all kernel tests."""

from __future__ import annotations

import pytest
from kernel_oracles import CAPACITY

from kernels_numba.cpu.backend import CpuBackend


@pytest.fixture(scope="session")
def backend() -> CpuBackend:
    return CpuBackend(CAPACITY, 2)
