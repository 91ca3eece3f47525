"""What sums over ranks must give, by NumPy, and the rows that they are given."""

from __future__ import annotations

import numpy as np

from dgpp.net.collective import Wire
from kernels_numba.cpu.memory import Block

OUTSIDE = np.float32(1e30)
"""What stands in gaps between rows, where no sum may look or write."""


def padded_block(values: np.ndarray, gap: int) -> Block:
    """Rows `gap` values apart, with numbers in the gap that no sum may see."""
    rows, width = values.shape
    array = np.full((rows, width + gap), OUTSIDE, np.float32)
    array[:, :width] = values
    return Block(array, width)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest even by way of the exact midpoint, in float64."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    low, kept = bits & 0xFFFF, bits >> 16
    up = (low > 0x8000) | ((low == 0x8000) & (kept & 1 == 1))
    return ((kept + up) << 16).astype(np.uint32).view(np.float32)


def in_rank_order(parts: list[np.ndarray], wire: Wire) -> np.ndarray:
    """Σ over ranks, one after the other, in float32."""
    total = None
    for part in parts:
        seen = to_bf16(part) if wire is Wire.BF16 else part
        total = seen.copy() if total is None else (total + seen).astype(np.float32)
    return total
