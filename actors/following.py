"""A rank beyond the first: it joins rank 0, takes its settings, and starts its actors."""

from __future__ import annotations

import logging
from collections.abc import Callable

from actors.boot import Boot
from actors.journal_join import Connection, Joining
from actors.outer import OuterWorld
from actors.supervisor import World
from dgpp.errors import DgppError

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

    async def start(self) -> None:
        given = await self._joining.connect()
        try:
            boot = self._deploy(given)
            facts = self._facts(boot)
        except DgppError as error:
            await self._joining.reject(f"{type(error).__name__}: {error}")
            raise
        connection = await self._joining.join(facts)
        _log.info("joined the world of rank 0 as rank %d", boot.rank)
        await self._enter(self._make_inner(boot, connection), (connection,))
