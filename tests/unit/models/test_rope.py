"""Rotary frequencies, plain and stretched, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dgpp.models.layers.rope import Yarn, rotary_angles


def test_plain_angles() -> None:
    angles = rotary_angles(5000, 64, 1e7)
    wanted = np.arange(5000)[:, None] * 1e7 ** (-2 * np.arange(32) / 64)
    np.testing.assert_allclose(angles, wanted, rtol=5e-7)


def test_the_band_of_the_released_long_context() -> None:
    # 64 values turned with base 10^7: over four times 262,144 positions the band is 16 to 24, over
    # 262,144 alone it would be 14 to 22. Cosines and sines are scaled by 1.0693 at factor 2.
    assert Yarn(2.0, 4 * 262144).band(64, 1e7) == (16, 24)
    assert Yarn(2.0, 262144).band(64, 1e7) == (14, 22)
    assert Yarn(2.0, 262144).attention_factor == pytest.approx(1.0693147182)


@pytest.mark.parametrize(
    ("yarn", "rotated", "theta"),
    [(Yarn(16, 65536), 64, 160000.0), (Yarn(2, 1048576), 64, 1e7), (Yarn(16, 64), 64, 160000.0)],
)
def test_stretched_angles(yarn: Yarn, rotated: int, theta: float) -> None:
    angles = rotary_angles(300, rotated, theta, yarn).astype(np.float64)
    for i in range(rotated // 2):
        frequency = theta ** (-2 * i / rotated)
        bounds = [
            rotated * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (yarn.beta_fast, yarn.beta_slow)
        ]
        low, high = max(math.floor(bounds[0]), 0), min(math.ceil(bounds[1]), rotated - 1)
        share = min(max((i - low) / (high - low), 0), 1)
        wanted = np.arange(300) * (frequency / yarn.factor * share + frequency * (1 - share))
        np.testing.assert_allclose(angles[:, i], wanted, rtol=1e-5)
