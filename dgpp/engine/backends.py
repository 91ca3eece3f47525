"""Which backend computes, and how it is made. Libraries load only for the one that is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dgpp.errors import ConfigError
from kernels_numba.gpu.device import Device, installed
from kernels_numba.gpu.errors import CudaError

if TYPE_CHECKING:
    # It brings NumPy with it; who only asks for a name has no use for that.
    from kernels_numba.backend import Backend

T = TypeVar("T")


def _named(call: Callable[[], T]) -> T:
    """The call's result; what is wrong with the GPU becomes a ConfigError under its key."""
    try:
        return call()
    except CudaError as error:
        message = f"engine.backend cuda: {error}"
        raise ConfigError(message) from error


def cuda_device(index: int) -> Device:
    """The GPU as another process found it. Raises ConfigError with the remedy."""
    from kernels_numba.gpu.probe import ask_device

    return _named(lambda: ask_device(index))


def choose_backend(wanted: str, device: int = 0) -> tuple[str, Device | None]:
    """(backend, its device): `auto` takes GPU `device` where it can be used, else the CPU.

    Raises ConfigError where `cuda` is asked for and cannot be had.
    """
    if wanted == "cuda":
        return "cuda", cuda_device(device)
    if wanted != "auto":
        return wanted, None
    if not installed():
        return "cpu", None
    try:
        return "cuda", cuda_device(device)
    except ConfigError:
        return "cpu", None


def make_backend(name: str, capacity: int, threads: int, device: int = 0) -> Backend:
    """The backend `name` for steps of up to `capacity` rows, on CUDA device `device` where it is
    cuda. Raises ConfigError."""
    if name == "cpu":
        from kernels_numba.cpu.backend import CpuBackend

        return CpuBackend(capacity, threads)
    if name == "cuda":
        from kernels_numba.gpu.backend import CudaBackend

        return _named(lambda: CudaBackend(capacity, device))
    raise ConfigError(f"engine.backend: {name} is not a backend of the model engine")
