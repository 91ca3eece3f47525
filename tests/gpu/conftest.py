"""Tests that need a CUDA device; without one they skip."""

from __future__ import annotations

import os

import pytest

from kernels_numba.gpu.device import open_device
from kernels_numba.gpu.errors import CudaError

# Loading a kernel lazily waits for all that runs in the process, such as the sum of a rank which
# waits for the one that is loading.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
# Ranks that share a device wait for one another: none of their streams may queue behind another's,
# as they do where a process has more streams than connections (8 unless this says more).
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture(scope="session")
def cuda() -> None:
    """A device that can be used."""
    try:
        open_device()
    except CudaError as error:
        pytest.skip(str(error))
