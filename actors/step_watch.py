"""Names a step that does not end: its engine hangs, or what it waits for is gone."""

from __future__ import annotations

LIMIT_S = 120.0
"""No step of any model comes near it."""


class StepWatch:
    """Counts what was planned and what was decided. Looked at from another thread, which may hang
    less than this one: whole numbers are all that they share."""

    def __init__(self, who: str, limit_s: float = LIMIT_S) -> None:
        self.planned = 0
        self.decided = 0
        self._who = who
        self._limit_s = limit_s
        self._seen = 0
        self._waited_s = 0.0

    def look(self, seconds: float) -> str | None:
        """`seconds` went by since the last look. The last words, where a step has been out for too
        long without a verdict."""
        decided = self.decided
        if self.planned == decided or decided != self._seen:
            self._waited_s = 0.0
        else:
            self._waited_s += seconds
        self._seen = decided
        if self._waited_s <= self._limit_s:
            return None
        return f"{self._who}: step {decided} did not end within {self._limit_s:g} s"
