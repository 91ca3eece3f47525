"""A world that comes together before its actors exist: what leading and following ranks share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from actors.journal_join import Connection
from actors.supervisor import Failure, World


class OuterWorld:
    """A World (see supervisor.py) around the one that holds this rank's actors.

    `start` forms the world of ranks, makes the inner one and gives it to `_enter`.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[Failure] = loop.create_future()
        self.asked: asyncio.Future[str] = loop.create_future()
        self._inner: World | None = None

    async def drain(self, timeout_s: float) -> None:
        if self._inner is not None:
            await self._inner.drain(timeout_s)

    async def stop(self) -> None:
        if self._inner is not None:
            await self._inner.stop()

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        if self._inner is not None:
            await self._inner.fail(failure, code, grace_s)

    async def kill(self) -> None:
        if self._inner is not None:
            await self._inner.kill()

    async def _enter(self, inner: World, connections: Iterable[Connection]) -> None:
        """Start the actors; what happens to them happens to this world. They have the connections
        then, and this process lets go of them: an actor's end must end them."""
        self._inner = inner
        inner.failure.add_done_callback(self._inner_failed)
        inner.asked.add_done_callback(self._inner_asked)
        try:
            await inner.start()
        finally:
            for connection in connections:
                connection.socket.close()

    def _fail(self, failure: Failure) -> None:
        if not self.failure.done():
            self.failure.set_result(failure)

    def _inner_failed(self, failure: asyncio.Future[Failure]) -> None:
        if not failure.cancelled():
            self._fail(failure.result())

    def _inner_asked(self, asked: asyncio.Future[str]) -> None:
        if not (asked.cancelled() or self.asked.done()):
            self.asked.set_result(asked.result())
