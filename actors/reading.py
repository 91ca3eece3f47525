"""Which prompts are being read, slot by slot, where the front end sees it."""

from __future__ import annotations

from actors.statistics import StatisticsBlock

SLOTS = 16
"""As many as an engine has at most."""

_NAMES = ("reading_prompt", "reading_done", "reading_cached", "reading_since_s")
GAUGES = tuple(f"{name}_{slot}" for name in _NAMES for slot in range(SLOTS))


class ReadingBoard:
    """The scheduler's side. A slot whose prompt is 0 tokens long reads none."""

    def __init__(self, block: StatisticsBlock) -> None:
        self._gauges = {name: block.gauge(name) for name in GAUGES}

    def begin(self, slot: int, prompt: int, cached: int, now_s: float) -> None:
        """A choice took `slot`; `cached` of its `prompt` tokens need not be read."""
        for name, value in zip(_NAMES, (prompt, cached, cached, now_s), strict=True):
            self._gauges[f"{name}_{slot}"].set(value)

    def read(self, slot: int, end: int, *, last: bool) -> None:
        """The prompt of `slot` is read up to `end`."""
        self._gauges[f"reading_done_{slot}"].set(end)
        if last:
            self.clear(slot)

    def clear(self, slot: int) -> None:
        self._gauges[f"reading_prompt_{slot}"].set(0)
