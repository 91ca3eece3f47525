"""The full memory fence that shared rings need, and what they need it for.

Two orders matter. *Publication*: a frame's bytes are visible before the index that announces them,
and the index is read before the bytes. *Sleeping* (Dekker): one side stores an index and then loads
the peer's flag, the other stores its flag and then loads the index; at least one must see the
other's store, or both sleep.

x86-64 keeps stores in order and loads in order (TSO), so publication needs nothing there; but a
store may pass a later load on every machine, so sleeping needs a real fence everywhere. aarch64
needs one for publication too. An aligned 8-byte word is copied by CPython in one instruction on
both, so a word is never seen half written.

The fence is libatomic's C11 `atomic_thread_fence(seq_cst)` (85 ns through ctypes). Where that
library is not installed: membarrier(2), whose contract is that two callers order each other's
accesses around it as two full fences would (1.2 µs).
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable

from actors.errors import FenceUnavailableError

_SEQ_CST = 5
_MEMBARRIER_GLOBAL_EXPEDITED = 2
_MEMBARRIER_NUMBERS = {"x86_64": 324, "aarch64": 283}

Fence = Callable[[], object]


def libatomic_fence() -> Fence | None:
    """The C11 fence, or None without libatomic. PyDLL: giving up the GIL costs more than it."""
    try:
        call = ctypes.PyDLL("libatomic.so.1").atomic_thread_fence
    except (OSError, AttributeError):
        return None
    call.restype = None
    return functools.partial(call, _SEQ_CST)


def membarrier_fence(machine: str) -> Fence | None:
    """The system call, or None where the kernel or a sandbox refuses it.

    No process registers as a target, so nobody is interrupted; the barriers that the call executes
    on its own caller are what counts.
    """
    number = _MEMBARRIER_NUMBERS.get(machine)
    if number is None:
        return None
    call = ctypes.PyDLL(None).syscall
    call.argtypes = (ctypes.c_long,) * 4
    call.restype = ctypes.c_long
    if call(number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0) != 0:
        return None
    return functools.partial(call, number, _MEMBARRIER_GLOBAL_EXPEDITED, 0, 0)


def _choose() -> Fence:
    fence = libatomic_fence() or membarrier_fence(platform.machine())
    if fence is None:
        raise FenceUnavailableError(
            "no memory fence: libatomic.so.1 is not installed and membarrier(2) is refused; "
            "install libatomic1"
        )
    return fence


full_fence: Fence = _choose()
PUBLICATION_NEEDS_FENCE = platform.machine() not in ("x86_64", "AMD64")
"""Whether publication takes a `full_fence()`: asked before each, which costs less than a call."""
