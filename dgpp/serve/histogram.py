"""Histograms of waits and sizes, kept where they are measured."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

LATENCY = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0),
    *(7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
"""Seconds, 1 ms to 640 s."""

STEP = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds, 1 ms to 10 s."""

GAP = (
    *(1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 30e-6, 50e-6, 75e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 100e-3),
)
"""Seconds, 1 µs to 100 ms."""

TOKENS = (*(float(m * 10**e) for e in range(6) for m in (1, 2, 5)), 1_000_000.0)
"""1 to 1M."""


class Histogram(msgspec.Struct):
    """How many observations fell at or below each bound, and their sum.

    `counts` has one more entry than `bounds`, for what is above them all; entries are not
    cumulative.
    """

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """Buckets as Prometheus names them: (upper bound, observations up to it)."""
        names = [*map(repr, self.bounds), "+Inf"]
        running, found = 0, []
        for name, count in zip(names, self.counts, strict=True):
            running += count
            found.append((name, running))
        return found
