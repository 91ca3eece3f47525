"""Which backend computes, and how it is made. Libraries load only for the one that is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from dgpp.errors import ConfigError
from kernels_numba.gpu.device import Device, seems_present
from kernels_numba.gpu.errors import CudaError

if TYPE_CHECKING:
    # It brings NumPy with it; who only asks for a name has no use for that.
    from kernels_numba.backend import Backend


@contextmanager
def gpu_named() -> Iterator[None]:
    """What is wrong with the GPU inside becomes a ConfigError under its key, with the one way out
    that is always there beside the error's own."""
    try:
        yield
    except CudaError as error:
        message = f"engine.backend cuda: {error}; or engine.backend cpu"
        raise ConfigError(message) from error


def _asked(index: int) -> Device:
    """The GPU as another process found it. Raises CudaError."""
    from kernels_numba.gpu.probe import ask_device

    return ask_device(index)


class Choice(NamedTuple):
    """The backend that computes, and its device. `why` `auto` took the CPU where a GPU seems to be
    there, "" where it did not."""

    backend: str
    device: Device | None = None
    why: str = ""

    @property
    def said(self) -> str:
        """`why` for a log, "" where there is nothing to say."""
        return f"engine.backend auto takes the CPU: {self.why}" if self.why else ""


def unused(backend: str, key: str, devices: Sequence[int]) -> str:
    """What is said of `devices` that `key` names where `backend` uses none, "" where it does."""
    if backend != "cpu" or not devices:
        return ""
    return f"{key} {', '.join(map(str, devices))}: not used, the CPU computes"


def placed(wanted: str, backend: str, place: str) -> str:
    """`place` for a memory plan's words: where `wanted` left the choice and the CPU was taken, it
    says so, as nobody asked for the host's memory."""
    if (wanted, backend) == ("auto", "cpu"):
        return f"{place}, where engine.backend auto took the CPU"
    return place


def _nothing(_device: Device) -> tuple[str, ...]:
    return ()


def choose_backend(
    wanted: str, device: int = 0, lacks: Callable[[Device], Sequence[str]] = _nothing
) -> Choice:
    """`auto` takes GPU `device` where it can be used and `lacks` nothing that the model needs, else
    the CPU.

    Raises ConfigError where `cuda` is asked for and cannot be had.
    """
    if wanted == "cuda":
        with gpu_named():
            return Choice("cuda", _asked(device))
    if wanted != "auto":
        return Choice(wanted)
    try:
        found = _asked(device)
    except CudaError as error:
        return Choice("cpu", why=str(error) if seems_present() else "")
    missed = lacks(found)
    return Choice("cpu", why=missed[0]) if missed else Choice("cuda", found)


def make_backend(name: str, capacity: int, threads: int, device: int = 0) -> Backend:
    """The backend `name` for steps of up to `capacity` rows, on CUDA device `device` where it is
    cuda. Raises ConfigError."""
    if name == "cpu":
        from kernels_numba.cpu.backend import CpuBackend

        return CpuBackend(capacity, threads)
    if name == "cuda":
        from kernels_numba.gpu.backend import CudaBackend

        with gpu_named():
            return CudaBackend(capacity, device)
    raise ConfigError(f"engine.backend: {name} is not a backend of the model engine")
