"""An event loop on virtual time in which ready callbacks run in a seeded random order.

Between processes nothing says which of two wake-ups comes first. Here each callback may be put off
by a moment, so that a run under one seed meets one such order, and meets it again.

A world makes hundreds of thousands of calls, so this loop does nothing else: no files, no threads,
and no context variables, which nothing that runs here has.
"""

from __future__ import annotations

import asyncio
import heapq
import random

PUT_OFF = 0.4
MOMENT_S = 200e-6
RESOLUTION_S = 1e-9
MOST_CANCELLED = 0.5
FEW_TIMERS = 100


class Call(float):
    """A call of `callback` with `owner` as the running loop; its value is when. It is its own
    handle."""

    __slots__ = ("args", "callback", "gone", "owner", "waits")

    def cancel(self):
        if not self.gone:
            self.gone = True
            self.owner.root.cancelled += self.waits
            self.callback = self.args = None

    def cancelled(self):
        return self.gone

    def when(self):
        return float(self)


class VirtualLoop(asyncio.BaseEventLoop):
    """Time stands still while anything is ready and jumps to the next timer otherwise.

    A part of what runs may have a loop of its own on this one (RankLoop), its `root`: that is what
    a call's `owner` is for. `halted`: nothing of it runs, its calls go to its `parked`.
    """

    halted = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.root = self
        self.cancelled = 0
        self._now = 1.0
        self._rng = random.Random(seed)
        self.moment = self._rng.random
        """A random number of this run, below 1."""

    def time(self) -> float:
        return self._now

    def clock_ns(self) -> int:
        return int(self._now * 1e9)

    def call_soon(self, callback, *args, context=None):
        return self.soon(self, callback, *args)

    call_soon_threadsafe = call_soon

    def call_at(self, when, callback, *args, context=None):
        return self.at(self, when, callback, *args)

    def call_later(self, delay, callback, *args, context=None):
        return self.at(self, self._now + delay, callback, *args)

    def soon(self, owner, callback, *args, context=None):
        """Have `owner` call soon: now, or a moment later."""
        if self.moment() < PUT_OFF:
            return self.at(owner, self._now + self.moment() * MOMENT_S, callback, *args)
        call = Call()
        call.owner, call.callback, call.args = owner, callback, args
        call.gone = call.waits = False
        self._ready.append(call)
        return call

    def at(self, owner, when, callback, *args, context=None):
        """Have `owner` call at `when`."""
        call = Call(when)
        call.owner, call.callback, call.args = owner, callback, args
        call.gone, call.waits = False, True
        heapq.heappush(self._scheduled, call)
        return call

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        self.call_later(self.moment() * 5e-3, settle, future, func, args)
        return future

    def _run_once(self):
        ready, running = self._ready, self
        while not self._stopping:
            self._look_at_timers()
            for _ in range(len(ready)):
                call = ready.popleft()
                if call.gone:
                    continue
                owner = call.owner
                if owner.halted:
                    owner.parked.append(call)
                    continue
                if owner is not running:
                    asyncio._set_running_loop(owner)
                    running = owner
                try:
                    call.callback(*call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as every event loop does
                    message = f"Exception in callback {call.callback}"
                    self.call_exception_handler({"message": message, "exception": error})

    def _look_at_timers(self):
        """What is due becomes ready; where nothing is, time goes on to the next timer."""
        ready, timers = self._ready, self._scheduled
        if not ready:
            if not timers:
                raise RuntimeError("a run waits for what nothing brings about")
            if timers[0] > self._now:
                self._now = float(timers[0])
        if len(timers) > FEW_TIMERS and self.cancelled > MOST_CANCELLED * len(timers):
            timers[:] = [call for call in timers if not call.gone]
            heapq.heapify(timers)
            self.cancelled = 0
        while timers and timers[0].gone:
            heapq.heappop(timers)
            self.cancelled -= 1
        end = self._now + RESOLUTION_S
        while timers and timers[0] < end:
            call = heapq.heappop(timers)
            call.waits = False
            ready.append(call)


def settle(future, func, args):
    """Give `future` what `func` comes to."""
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - the future carries it
        future.set_exception(error)
    else:
        future.set_result(result)
