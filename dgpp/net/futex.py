"""Sleeping on a word of shared memory, through futex(2). Calls release the GIL."""

from __future__ import annotations

import ctypes
import errno
import platform

_NUMBERS = {"x86_64": 202, "aarch64": 98}
FUTEX_NUMBER = _NUMBERS.get(platform.machine(), 98)
"""Of the system call."""
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def futex_wait(address: int, expected: int, timeout_s: float) -> bool:
    """Sleep while the 32-bit word at `address` is `expected`. False when the time ran out."""
    whole = int(timeout_s)
    limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
    result = _syscall(
        ctypes.c_long(FUTEX_NUMBER),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(expected & 0xFFFFFFFF),
        ctypes.byref(limit),
        None,
        ctypes.c_int(0),
    )
    return result == 0 or ctypes.get_errno() != errno.ETIMEDOUT


def futex_wake(address: int) -> None:
    """Wake whoever sleeps on the word."""
    _syscall(
        ctypes.c_long(FUTEX_NUMBER),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAKE),
        ctypes.c_int(_EVERYBODY),
        None,
        None,
        ctypes.c_int(0),
    )
