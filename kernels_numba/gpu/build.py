"""Machine code for one architecture's own instructions, which CuPy's compilation does not name."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.errors import CudaError

CACHE = "~/.cupy/kernel_cache"
"""CuPy's own default."""


def machine_code(name: str, text: str, options: tuple[str, ...], architecture: str) -> Path:
    """A file of `text` compiled for `architecture` (sm_90a), kept where CuPy keeps its own.

    Raises CudaError with the compiler's words.
    """
    cupy = load_cupy()
    nvrtc = cupy.cuda.nvrtc
    flags = (*options, "-ftz=true", f"--gpu-architecture={architecture}")
    said = "\0".join((text, *flags, str(nvrtc.getVersion())))
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or CACHE).expanduser()
    path = folder / f"dgpp-{hashlib.sha256(said.encode()).hexdigest()}.cubin"
    if path.exists():
        return path
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, flags)
        code = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise CudaError(nvrtc.getProgramLog(program) or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)
    folder.mkdir(parents=True, exist_ok=True)
    handle, held = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(code)
    # Another process may be at the same: each file is whole before it has its name.
    return Path(held).replace(path)
