"""Rotary angles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def rotary_angles(positions: int, rotated: int, theta: float) -> npt.NDArray[np.float32]:
    """float32 [positions, rotated / 2]: position · theta^(−2i / rotated), rounded at each step."""
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    frequencies = (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float32)
