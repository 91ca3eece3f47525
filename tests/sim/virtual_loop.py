"""An event loop on virtual time in which ready callbacks run in a seeded random order.

Between processes nothing says which of two wake-ups comes first. Here each callback may be put off
by a moment, so that a run under one seed meets one such order, and meets it again.
"""

from __future__ import annotations

import asyncio
import random
import selectors

PUT_OFF = 0.4
MOMENT_S = 200e-6


class _Selector(selectors.SelectSelector):
    """Never waits, nor looks: time passes by itself, and no file or thread has any news."""

    def select(self, timeout=None):
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while anything is ready and jumps to the next timer otherwise."""

    def __init__(self, seed: int) -> None:
        super().__init__(_Selector())
        self._now = 1.0
        self._rng = random.Random(seed)

    def time(self) -> float:
        return self._now

    def moment(self) -> float:
        """A random number of this run, below 1."""
        return self._rng.random()

    def clock_ns(self) -> int:
        return int(self._now * 1e9)

    def call_soon(self, callback, *args, context=None):
        if self._rng.random() < PUT_OFF:
            delay = self._rng.random() * MOMENT_S
            return self.call_at(self._now + delay, callback, *args, context=context)
        return super().call_soon(callback, *args, context=context)

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()

        def work():
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._rng.random() * 5e-3, work)
        return future

    def _run_once(self):
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0]._when)
        super()._run_once()
