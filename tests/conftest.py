"""What all tests share: `backend_name` runs a test once on every backend that this machine has.

With DGPP_TEST_EMULATED=1 that is the CUDA backend alone, its kernels compiled for the host.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from fake_hub import FakeHub

EMULATED = os.environ.get("DGPP_TEST_EMULATED") == "1"
if EMULATED:
    from emulator.backend import install
    from emulator.kernels import compile_ahead

    install()
    # Tests wait for what they need of it, and for nothing else.
    Thread(target=compile_ahead, daemon=True).start()


# How long an example takes says nothing on a shared machine.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


def pytest_configure() -> None:
    # A shell starts background jobs with SIGINT ignored, and children would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # What was imported and collected stays: a collector that walks it again and again takes longer
    # than many a test.
    gc.collect()
    gc.freeze()
    # Tests make more objects than a server does: look at them ten times as seldom.
    gc.set_threshold(7000, 10, 10)


# Read when the driver starts. Ranks that are threads need them (dgpp/check/world.py).
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@cache
def backend_names() -> tuple[str, ...]:
    """cpu where Numba loads, cuda where a device can be used."""
    from kernels_numba.gpu.device import installed, open_device
    from kernels_numba.gpu.errors import CudaError

    if EMULATED:
        return ("cuda",)
    names = []
    try:
        import numba  # noqa: F401 - only whether it loads
    except ImportError:
        pass
    else:
        names.append("cpu")
    if installed():
        try:
            open_device()
        except CudaError:
            pass
        else:
            names.append("cuda")
    return tuple(names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend_name" in metafunc.fixturenames:
        metafunc.parametrize("backend_name", backend_names(), scope="session")


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    """A Hugging Face hub of the module's own."""
    from fake_hub import FakeHub

    found = FakeHub()
    yield found
    found.close()
