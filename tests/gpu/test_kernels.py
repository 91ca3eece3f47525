"""Kernels that cannot be built are named."""

from __future__ import annotations

import pytest

from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.source import Unit, all_units


def test_every_unit_builds_for_this_cuda_device(cuda: None) -> None:
    Kernels().prepare(all_units())


def test_a_source_that_does_not_compile_on_cuda_is_named(cuda: None) -> None:
    with pytest.raises(CudaError, match=r"linear.cu \(FORMAT=9\) does not compile for this device"):
        Kernels().prepare([Unit("linear", (("FORMAT", 9),))])
