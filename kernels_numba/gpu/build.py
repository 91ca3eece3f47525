"""CUDA sources to machine code for one architecture, kept on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from kernels_numba.entry_lock import held
from kernels_numba.gpu.device import cache_folder, load_cupy, make_cache_folder
from kernels_numba.gpu.errors import CudaError, FolderError
from kernels_numba.gpu.source import Unit


class Compiler:
    """Compiles units for `architecture` (sm_90a; units that use nothing of it alone for sm_90)."""

    def __init__(self, architecture: str) -> None:
        self._architecture = architecture
        self._nvrtc = load_cupy().cuda.nvrtc
        self._version = str(self._nvrtc.getVersion())

    def _flags(self, unit: Unit) -> tuple[str, ...]:
        architecture = unit.architecture or self._architecture.removesuffix("a")
        return (*unit.options(), "-ftz=true", f"--gpu-architecture={architecture}")

    def path(self, unit: Unit) -> Path:
        """Where the unit's machine code is kept once it is compiled."""
        said = "\0".join((unit.text, *self._flags(unit), self._version))
        return cache_folder() / f"dgpp-{hashlib.sha256(said.encode()).hexdigest()}.cubin"

    def compiled(self, unit: Unit) -> Path:
        """The unit's machine code, made where it is not kept yet; from any thread. Raises CudaError
        with the compiler's words, FolderError where it cannot be kept."""
        path = self.path(unit)
        if self.keeps(unit):
            return path
        with held(path):
            # The ranks of a host want the same units at once: one compiles each.
            if self.keeps(unit):
                return path
            return _keep(self._compile(unit), path)

    def keeps(self, unit: Unit) -> bool:
        """Whether the unit's machine code is kept; a folder that cannot be looked into keeps
        nothing."""
        try:
            return self.path(unit).exists()
        except OSError:
            return False

    def _compile(self, unit: Unit) -> bytes:
        nvrtc = self._nvrtc
        program = nvrtc.createProgram(unit.text, f"{unit.name}.cu", (), ())
        try:
            nvrtc.compileProgram(program, self._flags(unit))
            code: bytes = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise CudaError(nvrtc.getProgramLog(program) or str(error)) from error
        finally:
            nvrtc.destroyProgram(program)
        return code


def _keep(code: bytes, path: Path) -> Path:
    """Put `code` in its place. Raises FolderError, and leaves nothing there."""
    make_cache_folder()
    try:
        return _written(code, path)
    except OSError as error:
        # No file of `_written` is one that a user knows.
        raise FolderError(OSError(error.errno, error.strerror), path.parent) from error


def _written(code: bytes, path: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        # Readers do not wait: each file is whole before it has its name.
        return Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise
