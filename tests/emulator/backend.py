"""The CUDA backend, its kernels run on the host."""

from __future__ import annotations

import sys

from emulator.cupy_host import module
from emulator.kernels import EmulatedKernels

from kernels_numba.gpu import device, kernels, probe
from kernels_numba.gpu.device import Device

DEVICE = Device(0, "emulated", (8, 0), 4, 8 << 30, 8 << 30, 13000, unified=True)
"""Few processors: grids of tests then take every path that a grid's size chooses."""


def install() -> None:
    """Let whatever is imported from now on find a device that is emulated."""
    assert "kernels_numba.gpu.backend" not in sys.modules
    cupy = module()
    sys.modules["cupy"] = cupy
    device.installed = lambda: True
    device.load_cupy = lambda: cupy
    device.open_device = lambda _index=0: DEVICE
    probe.installed = device.installed
    probe.ask_device = device.open_device
    kernels.Kernels = EmulatedKernels  # type: ignore[misc]
