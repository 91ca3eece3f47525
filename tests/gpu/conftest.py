"""Tests that need a CUDA device; without one they skip."""

from __future__ import annotations

import pytest

from kernels_numba.gpu.device import open_device
from kernels_numba.gpu.errors import CudaError


@pytest.fixture(scope="session")
def cuda() -> None:
    """A device that can be used."""
    try:
        open_device()
    except CudaError as error:
        pytest.skip(str(error))
