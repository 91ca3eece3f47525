"""Rotary angles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies stretched by `factor`, those that turn often over `original` positions left as
    they are: more than `beta_fast` turns; less than `beta_slow` are stretched whole."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    @property
    def attention_factor(self) -> float:
        """What families that scale cosines and sines scale them by."""
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def band(self, rotated: int, theta: float) -> tuple[int, int]:
        """The first and last frequency that are stretched in part."""

        def turning(turns: float) -> float:
            ratio = self.original / (turns * 2 * math.pi)
            return rotated * math.log(ratio) / (2 * math.log(theta))

        low, high = math.floor(turning(self.beta_fast)), math.ceil(turning(self.beta_slow))
        return max(low, 0), min(high, rotated - 1)

    def stretched(
        self, frequencies: npt.NDArray[np.float32], theta: float
    ) -> npt.NDArray[np.float32]:
        """float32 [rotated / 2] of the same."""
        low, high = self.band(2 * frequencies.size, theta)
        width = np.float32(high - low) if high > low else np.float32(0.001)
        places = np.arange(frequencies.size, dtype=np.float32) - np.float32(low)
        ramp = (places / width).clip(0, 1)
        slow = frequencies / np.float32(self.factor)
        mixed: npt.NDArray[np.float32] = slow * ramp + frequencies * (np.float32(1.0) - ramp)
        return mixed.astype(np.float32)


def rotary_angles(
    positions: int, rotated: int, theta: float, yarn: Yarn | None = None
) -> npt.NDArray[np.float32]:
    """float32 [positions, rotated / 2]: position · theta^(−2i / rotated), rounded at each step."""
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    frequencies = (np.float32(1.0) / np.power(np.float32(theta), exponents)).astype(np.float32)
    if yarn is not None:
        frequencies = yarn.stretched(frequencies, theta)
    return np.outer(np.arange(positions, dtype=np.float32), frequencies).astype(np.float32)
