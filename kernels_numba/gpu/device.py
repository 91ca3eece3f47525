"""The GPU this process computes on: found, checked, and its memory asked for."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_numba.gpu.errors import CudaError, FolderError

DRIVER_LIBRARY = "libcuda.so.1"
DEV = Path("/dev")
DEVICE_FILES = "nvidia[0-9]*"
VISIBLE = "CUDA_VISIBLE_DEVICES"
CACHE_VARIABLE = "CUPY_CACHE_DIR"
CACHE = "~/.cupy/kernel_cache"
"""CuPy's own default."""
REINSTALL = "see nvidia-smi, and install driver 580 or newer and 'dgpp[cuda]' anew"
NO_DRIVER = "no NVIDIA driver is installed: install 580 or newer"
OLDEST_DRIVER = 13000
"""CUDA version that the driver must serve: what NVRTC 13.0 compiles, it has to load."""
OLDEST_ARCHITECTURE = (8, 0)
"""Compute capability of the first devices with bf16 matrix instructions."""
MOST_SHARED = 227 << 10
"""Shared memory of a block, in bytes, of the devices that have most."""
_BLOCK_SHARED = 97
"""cudaDevAttrMaxSharedMemoryPerBlockOptin."""
_PROBE = 'extern "C" __global__ void probe(int* out) { *out = 7; }'


@dataclass(frozen=True, slots=True)
class Device:
    """A usable device. `architecture` is (major, minor); memory in bytes; `driver` as 13000.
    `shared` is the shared memory of a block at most: 227 KiB of an H200, 99 KiB of a GB10.

    On a machine whose GPU shares the host's memory (`unified`), free memory is the host's.
    """

    index: int
    name: str
    architecture: tuple[int, int]
    processors: int
    free_bytes: int
    total_bytes: int
    driver: int
    unified: bool
    shared: int = MOST_SHARED


def installed() -> bool:
    """Whether CuPy is there; imports nothing."""
    return importlib.util.find_spec("cupy") is not None


def has_driver() -> bool:
    """Whether the driver's library is there."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


def seems_present() -> bool:
    """Whether this machine looks as if it had an NVIDIA GPU: a driver, or a device file."""
    return has_driver() or any(DEV.glob(DEVICE_FILES))


def require_installed() -> None:
    """Raises CudaError where CuPy is absent. It is of no use without a driver, so that is missed
    first."""
    if installed():
        return
    if not has_driver():
        raise CudaError(NO_DRIVER)
    raise CudaError("CuPy is not installed: pip install 'dgpp[cuda]'")


def cache_folder() -> Path:
    """Where compiled units are kept: beside what CuPy compiles for itself. Raises FolderError where
    the path begins with a home that is not known."""
    named = Path(os.environ.get(CACHE_VARIABLE) or CACHE)
    try:
        return named.expanduser()
    except RuntimeError as error:
        unknown = OSError(errno.ENOENT, "that home folder is not known", str(named))
        raise FolderError(unknown) from error


def make_cache_folder() -> None:
    """The cache folder, there from now on, and CuPy's as well: CuPy takes the variable literally,
    also an empty one and a tilde. Raises FolderError."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise FolderError(_not_a_folder(folder)) from error
    except OSError as error:
        raise FolderError(error) from error
    os.environ[CACHE_VARIABLE] = str(folder)


def _not_a_folder(path: Path) -> OSError:
    return NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def load_cupy() -> Any:
    """The cupy module. Raises CudaError where it is absent or cannot load its libraries,
    FolderError where it has no folder for compiled kernels."""
    require_installed()
    if "cupy" not in sys.modules:
        make_cache_folder()
    try:
        import cupy
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and cache_folder() in Path(str(error.filename)).parents:
            raise FolderError(error) from error
        raise CudaError(f"CuPy cannot be imported: {error}; reinstall 'dgpp[cuda]'") from error
    return cupy


def open_device(index: int = 0) -> Device:
    """Check the driver, the device and the compiler; makes the device current on this thread.

    Raises CudaError naming the first thing that is missing and its remedy.
    """
    cupy = load_cupy()
    runtime = cupy.cuda.runtime
    driver = _driver(runtime)
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        message = f"no CUDA device can be used: {error}; see nvidia-smi{_hidden()}"
        raise CudaError(message) from error
    if not 0 <= index < count:
        message = f"CUDA device {index} does not exist: this machine has {count}"
        raise CudaError(f"{message}; see engine.devices{_hidden()}")
    try:
        cupy.cuda.Device(index).use()
        properties = runtime.getDeviceProperties(index)
        free, total = runtime.memGetInfo()
    except runtime.CUDARuntimeError as error:
        message = f"CUDA device {index} cannot be used: {error}; see nvidia-smi"
        raise CudaError(message) from error
    architecture = (int(properties["major"]), int(properties["minor"]))
    name = properties["name"].decode()
    if architecture < OLDEST_ARCHITECTURE:
        message = f"{name} has compute capability {architecture[0]}.{architecture[1]}, 8.0 is least"
        raise CudaError(f"{message}: name another device in engine.devices")
    _check_compiler(cupy)
    return Device(
        index,
        name,
        architecture,
        int(properties["multiProcessorCount"]),
        int(free),
        int(total),
        driver,
        bool(properties.get("integrated", 0)),
        int(runtime.deviceGetAttribute(_BLOCK_SHARED, index)),
    )


def _hidden() -> str:
    """What the user should know of the variable that hides devices, to follow a place to look."""
    shown = os.environ.get(VISIBLE)
    return f", and {VISIBLE}" + ("" if shown is None else f", which is {shown!r}")


def device_count() -> int:
    """CUDA devices of this machine; 0 where none can be used."""
    runtime = load_cupy().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


def reaches(index: int, others: Iterable[int]) -> bool:
    """Whether device `index` can read and write the memory of all `others`. A device that stands
    for several ranks reaches itself."""
    runtime = load_cupy().cuda.runtime
    return all(other == index or runtime.deviceCanAccessPeer(index, other) for other in others)


def _driver(runtime: Any) -> int:
    try:
        driver = int(runtime.driverGetVersion())
    except runtime.CUDARuntimeError as error:
        raise CudaError(f"no NVIDIA driver answers: {error}; {REINSTALL}") from error
    if driver == 0:
        raise CudaError(NO_DRIVER)
    if driver < OLDEST_DRIVER:
        message = (
            f"the NVIDIA driver serves CUDA {driver // 1000}.{driver % 1000 // 10}, "
            "13.0 is needed: install driver 580 or newer"
        )
        raise CudaError(message)
    return driver


def _check_compiler(cupy: Any) -> None:
    """Compile, load and run one kernel: NVRTC is loaded late and may be absent."""
    try:
        kernel = cupy.RawModule(code=_PROBE, options=("-std=c++17",)).get_function("probe")
        out = cupy.zeros(1, cupy.int32)
        kernel((1,), (1,), (out,))
        answer = int(out.get()[0])
    except (RuntimeError, OSError, ImportError, cupy.cuda.compiler.CompileException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            # A library that does not load has no number.
            raise FolderError(error, cache_folder()) from error
        message = f"CUDA kernels cannot be compiled here: {error}; pip install 'dgpp[cuda]'"
        raise CudaError(message) from error
    if answer != 7:
        message = "a test kernel ran and gave a wrong answer: the device is not usable"
        raise CudaError(f"{message}; {REINSTALL}")
