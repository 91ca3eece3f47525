"""A rank beyond the first: it joins rank 0, takes its settings, and starts its actors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from actors.boot import Boot
from actors.journal_ends import Heard
from actors.journal_join import Connection, Joining
from actors.outer import OuterWorld
from actors.supervisor import RELEASED, Failure, World
from dgpp.errors import DgppError
from dgpp.net.journal_messages import Ended, Leave

_log = logging.getLogger("dgpp.ranks")


class FollowingWorld(OuterWorld):
    """`deploy` settles what this rank is, from rank 0's settings; `facts` says it in short;
    `make_inner` makes the world of its actors."""

    def __init__(
        self,
        *,
        joining: Joining,
        deploy: Callable[[bytes], Boot],
        facts: Callable[[Boot], dict[str, str]],
        make_inner: Callable[[Boot, Connection], World],
    ) -> None:
        super().__init__()
        self._joining = joining
        self._deploy = deploy
        self._facts = facts
        self._make_inner = make_inner

        self._rank = 0

    async def start(self) -> None:
        try:
            boot, connection = await self._join()
        except asyncio.CancelledError as end:
            await self._joining.leave(str(end))
            raise
        self._rank = boot.rank
        _log.info("joined the world of rank 0 as rank %d", boot.rank)
        await self._enter(self._make_inner(boot, connection), {0: connection})

    async def _join(self) -> tuple[Boot, Connection]:
        given = await self._joining.connect()
        try:
            boot = self._deploy(given)
            facts = self._facts(boot)
        except DgppError as error:
            await self._joining.reject(f"{type(error).__name__}: {error}")
            raise
        return boot, await self._joining.join(facts)

    def _hear(self, heard: Heard) -> None:
        gone = "rank 0 is gone: its journal connection ended"
        said = heard.words.words if isinstance(heard.words, Ended) else gone
        self._fail(Failure(said, RELEASED))

    def _last_words(self, failure: Failure) -> msgspec.Struct:
        if failure.exit_status == 0:
            return Leave(failure.cause)
        return Ended(self._rank, failure.cause, failure.age_s)
