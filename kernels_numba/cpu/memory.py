"""Zeroed, huge-page backed arrays with their addresses."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernels_numba.weights import VECTOR

HUGE = 2 << 20

Place: TypeAlias = "tuple[int, int]"
"""Where rows lie, as kernels take it: address of the first, and bytes from one to the next."""


def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeroed array aligned to 64 bytes; large ones on huge pages where the kernel has them."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape))
    size = count * kind.itemsize
    if size < HUGE:
        raw = np.zeros(size + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + size].view(kind).reshape(shape)
    region = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        region.madvise(mmap.MADV_HUGEPAGE)
    flat = np.frombuffer(region, np.uint8)
    start = -flat.ctypes.data % HUGE
    return flat[start : start + size].view(kind).reshape(shape)


def page_aligned(size: int) -> memoryview:
    """`size` zero bytes at the start of a page."""
    return memoryview(mmap.mmap(-1, size))


def padded(width: int) -> int:
    """`width` rounded up to whole vectors."""
    return -(-width // VECTOR) * VECTOR


class Block:
    """A two-dimensional array with what kernels need of it: address and row stride in bytes, and
    both as one `place`."""

    __slots__ = ("address", "array", "place", "stride", "width")

    def __init__(self, array: npt.NDArray[Any], width: int | None = None) -> None:
        self.array = array
        self.address = int(array.ctypes.data)
        self.stride = int(array.strides[0]) if array.ndim > 1 else 0
        self.place: Place = (self.address, self.stride)
        self.width = int(array.shape[-1]) if width is None else width


def grown(block: Block, rows: int, width: int) -> Block:
    """`block`, or a larger one when it does not hold `rows` × `width`."""
    if block.width >= width and block.array.shape[0] >= rows:
        return block
    shape = (max(rows, block.array.shape[0]), max(padded(width), block.width))
    return Block(allocate(shape, np.float32))
