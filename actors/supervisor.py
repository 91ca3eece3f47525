"""The life of a world: start, serve, drain, stop; or fail. The same for every placement.

One for all: there is no restart inside. Whoever dies, the world ends with that cause, and whatever
started it may start it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from actors.heartbeat import STOPPED_S, Standstill

_log = logging.getLogger("dgpp.supervisor")

ENGINE_FAILURE = "engine_failure"
SERVER_SHUTDOWN = "server_shutdown"
FAILED_TO_START = 1
RELEASED = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds.

    `drain_timeout_s`: engine.drain_timeout_s. `start_timeout_s`: None waits for ever. `stall_s`:
    a serving process without heart-beat for so long counts as dead. `start_stall_s`: the same
    while it loads. `supervisor_stall_s`: children end themselves after so long without the
    supervisor's beat. `grace_s`: what a role that faces outside gets for its last words after a
    failure. `end_s`: a failed world is gone this long after the failure, which shortens the grace
    where noticing took time. `watchdog_s`: the process exits by force so long after the drain
    timeout; None never forces.
    """

    drain_timeout_s: float = 30.0
    start_timeout_s: float | None = None
    stall_s: float = 2.0
    start_stall_s: float = 60.0
    supervisor_stall_s: float = 2.3
    grace_s: float = 1.5
    end_s: float = 2.7
    watchdog_s: float | None = 30.0


class Failure(msgspec.Struct, frozen=True):
    """Why the world ends, what to exit with, and how long ago it happened."""

    cause: str
    exit_status: int
    age_s: float = 0.0


class World(Protocol):
    """The actors of one rank in one placement. `failure` is set once, by whatever breaks first;
    `asked` once, when an actor wants the world to end in order."""

    failure: asyncio.Future[Failure]
    asked: asyncio.Future[str]

    async def start(self) -> None:
        """Returns when every actor serves."""

    async def drain(self, timeout_s: float) -> None:
        """Returns when the roles that face outside have answered whoever waits there."""

    async def stop(self) -> None:
        """Stops all in reverse order, each within its time."""

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        """End everything but the roles that face outside; those get `grace_s` to tell whoever
        waits there."""

    def mute(self, role: str) -> bool:
        """Whether this actor can tell nobody of a failure: it is not up, or gone, or stopped, and
        did not tell either."""

    async def kill(self) -> None:
        """Returns when nothing is left; every fd is closed."""


def own_standstill(rank: int) -> Failure:
    """What a supervisor says that others found stopped, and woke."""
    standstill = Standstill(STOPPED_S, stopped=True)
    return Failure(f"supervisor of rank {rank} {standstill.words}", 2, standstill.seconds)


class Supervisor:
    """Runs one world to its end on the current loop, in the main thread."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        on_ready: Callable[[], object],
    ) -> None:
        self._world = world
        self._settings = settings
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self._signals = 0
        self._asked: asyncio.Future[str] = self._loop.create_future()
        self._forced: asyncio.Future[int] = self._loop.create_future()

    async def run(self) -> int:
        """Returns the exit status: 0 orderly, 1 failed to start, 2 failed or forced."""
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._signalled, number)
        self._world.asked.add_done_callback(self._world_asked)
        try:
            return await self._live()
        finally:
            await self._world.kill()
            for number in SIGNALS:
                self._loop.remove_signal_handler(number)

    async def _live(self) -> int:
        done = await self._until(
            self._world.start(), self._asked, timeout_s=self._settings.start_timeout_s
        )
        if self._world.failure.done():
            return await self._failed(self._world.failure.result(), ready=False)
        if self._asked.done():
            why = f"stopped before it was ready: {self._asked.result()}"
            _log.info("%s", why)
            await self._last_words(Failure(why, 0), SERVER_SHUTDOWN)
            return 0
        if not done:
            limit = f"start_timeout_s {self._settings.start_timeout_s:g}"
            return await self._failed(Failure(f"not ready within {limit}", 1), ready=False)
        self._on_ready()
        await self._until(None, self._asked)
        if self._world.failure.done():
            return await self._failed(self._world.failure.result(), ready=True)
        return await self._shut_down()

    async def _shut_down(self) -> int:
        timeout_s = self._settings.drain_timeout_s
        _log.info("%s: draining up to %g s", self._asked.result(), timeout_s)
        patience_s = self._settings.watchdog_s
        watchdog = None if patience_s is None else _watchdog(timeout_s + patience_s)
        try:
            drained = await self._until(
                self._world.drain(timeout_s), self._forced, timeout_s=timeout_s
            )
            if not drained and not self._interrupted():
                _log.warning("not drained within %g s", timeout_s)
            if not self._interrupted():
                await self._until(self._world.stop(), self._forced)
            if self._world.failure.done():
                return await self._failed(self._world.failure.result(), ready=True)
            if self._forced.done():
                _log.error("second signal: killed")
                return 2
            return 0
        finally:
            if watchdog is not None:
                watchdog.cancel()

    async def _failed(self, failure: Failure, *, ready: bool) -> int:
        _log.error("%s", failure.cause)
        await self._last_words(failure, ENGINE_FAILURE)
        # A rank that another one releases has no fault of its own, serving or not.
        return failure.exit_status if ready or failure.exit_status == RELEASED else FAILED_TO_START

    async def _last_words(self, failure: Failure, code: str) -> None:
        """Let the roles that face outside tell whoever waits there."""
        grace_s = max(0.0, min(self._settings.grace_s, self._settings.end_s - failure.age_s))
        telling = self._world.fail(failure, code, grace_s)
        await self._until(telling, self._forced, watch_failure=False)

    def _interrupted(self) -> bool:
        return self._world.failure.done() or self._forced.done()

    async def _until(
        self,
        work: Coroutine[Any, Any, None] | None,
        interruption: asyncio.Future[Any],
        timeout_s: float | None = None,
        *,
        watch_failure: bool = True,
    ) -> bool:
        """Run `work` until it is done (True), or a failure, `interruption` or the timeout."""
        task = self._loop.create_task(work) if work is not None else None
        waited: set[asyncio.Future[Any]] = {interruption}
        if task is not None:
            waited.add(task)
        if watch_failure:
            waited.add(self._world.failure)
        await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task is None:
            return False
        if task.done():
            task.result()
            return True
        task.cancel(self._why())
        await asyncio.gather(task, return_exceptions=True)
        return False

    def _why(self) -> str:
        """Why what is under way must end, for whoever it talks to."""
        if self._world.failure.done():
            return self._world.failure.result().cause
        return f"was asked to end: {self._asked.result()}" if self._asked.done() else "out of time"

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if not self._asked.done():
            self._asked.set_result(f"signal {number}")
        if self._signals > 1 and not self._forced.done():
            self._forced.set_result(number)

    def _world_asked(self, asked: asyncio.Future[str]) -> None:
        # A signal that comes later, where whole machines are told to end, forces nothing yet.
        if not asked.cancelled() and not self._asked.done():
            self._asked.set_result(asked.result())


def _watchdog(seconds: float) -> threading.Timer:
    """Independent of the loop and of every lock: children die with this process."""

    def force() -> None:
        os.write(2, f"shutdown not complete after {seconds:g} s: forced\n".encode())
        os._exit(2)

    timer = threading.Timer(seconds, force)
    timer.daemon = True
    timer.start()
    return timer
