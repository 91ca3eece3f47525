"""How long the other side of a link may say nothing.

Counted in looks, not in time: when the whole machine pauses, nobody looks, and nobody is accused
afterwards.
"""

from __future__ import annotations

BEAT_S = 0.25
"""How often each side says that it is alive, and looks whether the other did."""

SILENT_S = 2.0
"""Silence that ends a serving world: named and over within 3 s."""

START_SILENT_S = 60.0
"""The same while a rank's processes start."""


class Silence:
    """One link's silence; `look` once per `BEAT_S`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._looks = 0

    def heard(self) -> None:
        self._looks = 0

    def allow(self, limit_s: float) -> None:
        """From now on another limit, counted anew."""
        self._limit_s = limit_s
        self._looks = 0

    def look(self) -> float | None:
        """The silence in seconds where it is too long, else None."""
        self._looks += 1
        silent_s = self._looks * BEAT_S
        return silent_s if silent_s > self._limit_s else None
