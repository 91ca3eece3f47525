"""A checksum of memory as fast as it is read: 64-bit words folded one after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from kernels_numba.cpu.pointers import pointer_to
from kernels_numba.jit import carray, kernel

pointer_u64 = pointer_to(types.uint64)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplying by it loses nothing: any one word that differs changes the sum."""
_LANES = 4


@kernel()
def _fold_words(address: int, words: int) -> int:
    held = carray(pointer_u64(address), (words,))
    a = np.uint64(1)
    b = np.uint64(2)
    c = np.uint64(3)
    d = np.uint64(4)
    whole = words // _LANES * _LANES
    for i in range(0, whole, _LANES):
        a = (a ^ held[i]) * _FACTOR
        b = (b ^ held[i + 1]) * _FACTOR
        c = (c ^ held[i + 2]) * _FACTOR
        d = (d ^ held[i + 3]) * _FACTOR
    for i in range(whole, words):
        a = (a ^ held[i]) * _FACTOR
    total = (((a * _FACTOR ^ b) * _FACTOR ^ c) * _FACTOR ^ d) * _FACTOR
    return int(total ^ (total >> np.uint64(32)))


def fold(data: npt.NDArray[np.uint8]) -> int:
    """Of contiguous bytes: 0 … 2^64 − 1. The GIL is released meanwhile."""
    words, rest = divmod(data.size, 8)
    total = int(_fold_words(int(data.ctypes.data), words))
    tail = int.from_bytes(data[8 * words :].tobytes(), "little") if rest else 0
    return (total ^ (tail + data.size) * int(_FACTOR)) & 0xFFFFFFFFFFFFFFFF
