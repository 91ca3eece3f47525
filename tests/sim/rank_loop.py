"""One simulated machine's share of the virtual loop: it can stand still, and it can be gone.

All ranks of a simulated world run on one VirtualLoop. Each sees it through a RankLoop, which is
the running loop of whatever that rank does, so that a whole rank can be paused or killed between
any two of its callbacks.
"""

from __future__ import annotations

import asyncio
from functools import partial

from virtual_loop import settle

INSTANT_S = 1e-9
"""What keeps timers in their order: those of one moment run in any."""


class RankLoop(asyncio.AbstractEventLoop):
    """What actors need of a loop. `ledger` is the run's, for the roles that stand in for others."""

    def __init__(self, root, ledger) -> None:
        self.root = root
        self.ledger = ledger
        self.halted = False
        self.parked = []
        self._dead = False
        self.call_soon = self.call_soon_threadsafe = partial(root.soon, self)
        self.call_at = partial(root.at, self)
        self.moment = root.moment
        self.time = root.time
        self.clock_ns = root.clock_ns

    def pause(self) -> None:
        """As SIGSTOP: nothing of this rank runs."""
        self.halted = True

    def resume(self) -> None:
        """As SIGCONT: what fell due meanwhile runs now, in its order."""
        if self._dead:
            return
        self.halted = False
        parked, self.parked = self.parked, []
        for place, call in enumerate(parked):
            self.call_at(self.root.time() + place * INSTANT_S, self._run_parked, call)

    def _run_parked(self, call) -> None:
        """Run what was called for, unless it was cancelled while it was parked."""
        if not call.gone:
            call.callback(*call.args)

    def kill(self) -> None:
        """As SIGKILL: nothing of this rank ever runs again."""
        self.halted = self._dead = True

    async def bury(self) -> None:
        """After the run: let what a killed rank left behind unwind, so that nothing is leaked."""
        self._dead = False
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
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            callback(*args)
        finally:
            asyncio._set_running_loop(before)

    def call_later(self, delay, callback, *args, context=None):
        return self.root.at(self, self.root.time() + delay, callback, *args)

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, *, name=None, context=None):
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor, func, *args):
        future = self.create_future()
        self.call_later(self.moment() * 5e-3, settle, future, func, args)
        return future

    def add_signal_handler(self, sig, callback, *args):
        """Signals are sent by calling what handles them."""

    def remove_signal_handler(self, sig):
        return True

    def call_exception_handler(self, context):
        self.root.call_exception_handler(context)

    def get_debug(self):
        return False

    def is_running(self):
        return True

    def is_closed(self):
        return False
