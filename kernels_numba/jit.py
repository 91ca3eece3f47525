"""How every CPU kernel is compiled: cached beside a digest of the kernel sources, GIL released."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.ccallback
import numba.core.config
import numba.core.sigutils
import numba.extending

from kernels_numba.compile_log import CompileLog
from kernels_numba.shared_cache import SharedCache

# GNU OpenMP's threads spin for milliseconds after a region by default. Beside any other busy
# process the spinning ones hold the cores that the late one needs: a few percent are lost here on
# an idle machine, where waiting longer would lose ten times the speed on a busy one. Read when the
# library loads, which is after this line.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Numba's own annotations describe some of these as ordinary Python; kernels see the compiler.
config: Any = numba.core.config
carray: Any = numba.__dict__["carray"]
get_thread_id: Any = numba.__dict__["get_thread_id"]
intrinsic: Any = numba.extending.intrinsic
normalize_signature: Any = numba.core.sigutils.normalize_signature
prange: Any = numba.prange
set_num_threads: Any = numba.set_num_threads
threading_layer: Any = numba.__dict__["threading_layer"]

F = TypeVar("F", bound=Callable[..., Any])


def _cache_directory() -> str:
    """A compiled kernel inlines helpers of other files, and Numba watches only the kernel's own:
    a digest over all of them keeps an upgrade from running yesterday's machine code."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(root) / "dgpp" / "kernels" / digest.hexdigest()[:16])


if "NUMBA_CACHE_DIR" not in os.environ:
    config.CACHE_DIR = _cache_directory()

compile_log = CompileLog(str(config.CACHE_DIR))
compile_log.install()


def kernel(*, parallel: bool = False, inline: bool = False) -> Callable[[F], F]:
    """Compile a function of the CPU backend. Never `fastmath`: the order of a sum is a promise."""

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(
            cache=True,
            nogil=True,
            parallel=parallel,
            error_model="numpy",
            inline="always" if inline else "never",
        )(function)
        compiled._cache = SharedCache(compiled._cache)
        return cast("F", compiled)

    return decorate


def entry(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function for calls by address. A literal type in `signature` is compiled in."""
    options = {"nopython": True, "error_model": "numpy"}
    typed = normalize_signature(signature)
    compiled: Any = numba.core.ccallback.CFunc(function, typed, locals={}, options=options)
    compiled.enable_caching()
    compiled._cache = SharedCache(compiled._cache)
    compiled.compile()
    return compiled
