"""One simulated machine's share of the virtual loop: it can stand still, and it can be gone.

All ranks of a simulated world run on one VirtualLoop. Each sees it through a RankLoop, which is
the running loop of whatever that rank does, so that a whole rank can be paused or killed between
any two of its callbacks.
"""

from __future__ import annotations

import asyncio

INSTANT_S = 1e-9
"""What keeps timers in their order: those of one moment run in any."""


class _Call:
    """A callback with the handle by which it can be cancelled."""

    __slots__ = ("args", "callback", "handle")

    def __init__(self, callback, args) -> None:
        self.callback, self.args = callback, args


class RankLoop(asyncio.AbstractEventLoop):
    """What actors need of a loop. `ledger` is the run's, for the roles that stand in for others."""

    def __init__(self, loop, ledger) -> None:
        self._loop = loop
        self.ledger = ledger
        self._parked = []
        self.paused = False
        self.dead = False

    def pause(self) -> None:
        """As SIGSTOP: nothing of this rank runs."""
        self.paused = True

    def resume(self) -> None:
        """As SIGCONT: what fell due meanwhile runs now, in its order."""
        self.paused = False
        if self.dead:
            return
        parked, self._parked = self._parked, []
        for place, (callback, args) in enumerate(parked):
            self._loop.call_at(self._loop.time() + place * INSTANT_S, self.run, callback, *args)

    def fire(self, call) -> None:
        """Run what was called for, unless it was cancelled meanwhile, be it while it was parked."""
        if self.paused or self.dead:
            self._parked.append((self.fire, (call,)))
        elif not call.handle.cancelled():
            self.run(call.callback, *call.args)

    def kill(self) -> None:
        """As SIGKILL: nothing of this rank ever runs again."""
        self.dead = True

    async def bury(self) -> None:
        """After the run: let what a killed rank left behind unwind, so that nothing is leaked."""
        self.dead = False
        tasks = asyncio.all_tasks(self)
        self.resume()
        for _ in range(20):
            for task in tasks:
                # Again and again: a wait_for that ends in this very moment swallows one.
                self.run(task.cancel)
            await asyncio.sleep(0.01)
            if all(task.done() for task in tasks):
                return
        raise AssertionError(f"tasks that cannot be cancelled: {tasks}")

    def run(self, callback, *args) -> None:
        """Call `callback` with this as the running loop."""
        if self.paused or self.dead:
            self._parked.append((callback, args))
            return
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            callback(*args)
        finally:
            asyncio._set_running_loop(before)

    def time(self):
        return self._loop.time()

    def clock_ns(self):
        return self._loop.clock_ns()

    def call_soon(self, callback, *args, context=None):
        call = _Call(callback, args)
        call.handle = self._loop.call_soon(self.fire, call, context=context)
        return call.handle

    call_soon_threadsafe = call_soon

    def moment(self):
        return self._loop.moment()

    def call_at(self, when, callback, *args, context=None):
        call = _Call(callback, args)
        call.handle = self._loop.call_at(when, self.fire, call, context=context)
        return call.handle

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._loop.time() + delay, callback, *args, context=context)

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()

        def work():
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._loop.moment() * 5e-3, work)
        return future

    def add_signal_handler(self, sig, callback, *args):
        """Signals are sent by calling what handles them."""

    def remove_signal_handler(self, sig):
        return True

    def call_exception_handler(self, context):
        self._loop.call_exception_handler(context)

    def get_debug(self):
        return False

    def is_running(self):
        return True

    def is_closed(self):
        return False
