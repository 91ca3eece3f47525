"""`kernels_numba.gpu.kernels.Kernels` on the host: compiled by its C++ compiler, run there."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from emulator.cupy_host import enqueue
from emulator.translate import KERNEL, UnknownSyntaxError, translate

from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.source import Unit, shared_units

HOST = Path(__file__).parent / "cuda_host.h"
HEADERS = "".join(path.read_text() for path in sorted(HOST.parent.glob("*.h")))
FLAGS = (
    # Level 2 takes half as long again to compile and makes nothing faster.
    *("-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-w"),
    # Else copies of a library in one process share what their inline functions keep.
    "-fno-gnu-unique",
)
DECLARED = ("-D__global__=EMULATED_KERNEL", "-D__launch_bounds__(...)=", "-D__CUDA_ARCH__=800")
"""How a source is read for the names of its kernels."""
COMPILE_S = 300
_making: dict[Path, Lock] = defaultdict(Lock)


def compiler() -> str | None:
    """A C++ compiler of this machine."""
    told = os.environ.get("CXX")
    return next(
        (path for name in (told, "g++", "clang++") if name and (path := shutil.which(name))), None
    )


def _folder() -> Path:
    """Compiled kernels, kept between runs."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache_home) if cache_home else Path.home() / ".cache") / "dgpp" / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(arguments: list[str], unit: Unit) -> str:
    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=COMPILE_S, check=False
    )
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if "error" in line]
        raise CudaError(f"{unit} is not emulated: {'; '.join(lines[:3])}")
    return ended.stdout


def compiled(unit: Unit) -> Path:
    """The unit's shared library, made where it is absent. Raises CudaError as `library` does."""
    found = compiler()
    assert found is not None
    defines = [option for option in unit.options() if option.startswith("-D")]
    text = translate(unit.text)
    said = f"{text}{HEADERS}{defines}{FLAGS}{found}"
    built = _folder() / f"{unit.name}-{hashlib.sha256(said.encode()).hexdigest()[:32]}.so"
    with _making[built]:
        if not built.exists():
            with _alone(built):
                if not built.exists():
                    _compile(unit, text, [found, *FLAGS, *defines], built)
    return built


@contextmanager
def _alone(built: Path) -> Iterator[None]:
    """Whoever else wants it made waits: ranks and tests ask for the same units at once."""
    with built.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _compile(unit: Unit, text: str, command: list[str], built: Path) -> None:
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        source, made = Path(scratch) / "unit.cpp", Path(scratch) / "unit.so"
        source.write_text(text)
        # Once through the preprocessor for the kernels' names: macros declare some of them.
        seen = _run([*command, *DECLARED, "-E", "-P", str(source)], unit)
        names = sorted(set(KERNEL.findall(seen)))
        entries = "\n".join(f"EMULATED_ENTRY({name})" for name in names)
        source.write_text(f'#define __global__\n#include "{HOST}"\n{text}\n{entries}\n')
        _run([*command, "-shared", "-o", str(made), str(source)], unit)
        made.replace(built)


def compile_ahead() -> None:
    """Make what is going to be asked for; what cannot be made is named when it is."""
    for unit in shared_units():
        with suppress(CudaError, UnknownSyntaxError):
            compiled(unit)


@cache
def library(unit: Unit, copy: int = 0) -> ctypes.CDLL:
    """The unit's kernels. Raises CudaError where the emulator lacks something they use.

    A library runs one kernel at a time: threads that are devices of their own need a `copy` each.
    """
    built = compiled(unit)
    if copy:
        again = built.with_name(f"{built.stem}-{copy}.so")
        if not again.exists():
            # Whole or absent: another run may look for it at the same time.
            with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
                Path(shutil.copy(built, scratch)).replace(again)
        built = again
    return ctypes.CDLL(str(built))


class EmulatedKernels:
    """Launches run at once, in the caller's thread, or when the recorded graph does."""

    architecture = "emulated"
    room = 227 << 10
    """Shared memory of a block at most."""

    def __init__(self, copy: int = 0) -> None:
        self._copy = copy
        self.shares = False

    def share_device(self) -> None:
        """Nothing starts early here."""
        self.shares = True

    def prepare(self, units: Iterable[Unit]) -> None:
        """Nothing: units compile when they are first launched."""

    def launch(
        self,
        unit: Unit,
        name: str,
        grid: tuple[int, ...],
        block: int,
        arguments: tuple[int | float, ...],
        shared: int = 0,
        **_: Any,
    ) -> None:
        if shared > self.room:
            raise RuntimeError(f"{unit}: {name} asks for {shared} bytes of shared memory")
        held = library(unit, self._copy)
        wanted = getattr(held, f"emulated_count_{name}")()
        if wanted != len(arguments):
            raise TypeError(f"{unit}: {name} takes {wanted} arguments, not {len(arguments)}")
        words = (ctypes.c_uint64 * len(arguments))()
        for index, value in enumerate(arguments):
            if isinstance(value, float):
                ctypes.c_double.from_buffer(words, 8 * index).value = value
            else:
                words[index] = value & (1 << 64) - 1
        sizes = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
        call = getattr(held, f"emulated_launch_{name}")
        call.restype = ctypes.c_char_p

        def run() -> None:
            failed = call(sizes, block, shared, words)
            if failed:
                raise RuntimeError(f"{unit}: {name}: {failed.decode()}")

        enqueue(run)
