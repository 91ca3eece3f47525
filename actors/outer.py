"""A world that comes together before its actors exist: what leading and following ranks share.

Its supervisor keeps the journal's connections too: for what must be said while the scheduler that
has them cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from actors.journal_ends import Heard, JournalEnds
from actors.journal_join import Connection
from actors.supervisor import Failure, World

SCHEDULER = "scheduler"
"""The role that has the journal."""

LISTEN_S = 0.1
"""How often a supervisor looks for last words before its scheduler can hear them."""


class OuterWorld:
    """A World (see supervisor.py) around the one that holds this rank's actors.

    `start` forms the world of ranks, makes the inner one and gives it to `_enter`.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[Failure] = loop.create_future()
        self.asked: asyncio.Future[str] = loop.create_future()
        self._inner: World | None = None
        self._ends = JournalEnds()

    async def drain(self, timeout_s: float) -> None:
        if self._inner is not None:
            await self._inner.drain(timeout_s)

    async def stop(self) -> None:
        if self._inner is not None:
            await self._inner.stop()

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        if self._inner is None:
            return
        if self._inner.mute(SCHEDULER):
            self._ends.say(self._last_words(failure))
        else:
            self._ends.close()
        await self._inner.fail(failure, code, grace_s)

    def mute(self, role: str) -> bool:
        return self._inner is None or self._inner.mute(role)

    async def kill(self) -> None:
        if self._inner is not None:
            await self._inner.kill()
        self._ends.close()

    def _last_words(self, failure: Failure) -> msgspec.Struct:
        """What the other ranks hear of a failure."""
        raise NotImplementedError

    async def _enter(self, inner: World, connections: Mapping[int, Connection]) -> None:
        """Start the actors; what happens to them happens to this world."""
        self._inner = inner
        self._ends = JournalEnds(connections)
        inner.failure.add_done_callback(self._inner_failed)
        inner.asked.add_done_callback(self._inner_asked)
        listening = asyncio.ensure_future(self._listen())
        try:
            await inner.start()
        finally:
            listening.cancel()

    async def _listen(self) -> None:
        """Until this rank serves: what its actors load must not keep it from hearing an end."""
        while True:
            await asyncio.sleep(LISTEN_S)
            if self.mute(SCHEDULER) and (heard := self._ends.heard()) is not None:
                self._hear(heard)

    def _hear(self, heard: Heard) -> None:
        """Another rank is at its end."""
        raise NotImplementedError

    def _fail(self, failure: Failure) -> None:
        if not self.failure.done():
            self.failure.set_result(failure)

    def _inner_failed(self, failure: asyncio.Future[Failure]) -> None:
        if not failure.cancelled():
            self._fail(failure.result())

    def _ask(self, why: str) -> None:
        if not self.asked.done():
            self.asked.set_result(why)

    def _inner_asked(self, asked: asyncio.Future[str]) -> None:
        if not asked.cancelled():
            self._ask(asked.result())
