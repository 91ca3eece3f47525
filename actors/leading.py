"""Rank 0 of several: it starts the other ranks of its host, and no actor before all have joined."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

import msgspec

from actors.heartbeat import BEAT_S, Heartbeat, HeartbeatPage
from actors.journal_ends import Heard
from actors.journal_join import Connection, Gathering
from actors.outer import OuterWorld
from actors.rank_process import RankProcess
from actors.rank_spec import RankSpec
from actors.supervisor import Failure, Settings, World, own_standstill
from dgpp.net.journal_join import Roster
from dgpp.net.journal_messages import Ended, Leave

RANK_0 = 0
"""Rank 0's word in the heart-beat page of a host's ranks."""

LEAVE_S = 5.0
"""What the other ranks get to end after an orderly stop."""

END_S = 0.6
"""The same after a failure: by then they have been told."""

_log = logging.getLogger("dgpp.ranks")


class LeadingWorld(OuterWorld):
    """`specs` are the ranks to start here (none where each is started on its own), `page` their
    heart-beats and rank 0's. `make_inner` makes the world of rank 0's actors."""

    def __init__(
        self,
        *,
        listener: socket.socket,
        roster: Roster,
        timeout_s: float,
        specs: Sequence[RankSpec],
        page: HeartbeatPage | None,
        settings: Settings,
        make_inner: Callable[[dict[int, Connection]], World],
    ) -> None:
        super().__init__()
        self._listener = listener
        self._roster = roster
        self._timeout_s = timeout_s
        self._specs = specs
        self._page = page
        self._settings = settings
        self._make_inner = make_inner
        self._ranks: list[RankProcess] = []
        self._heartbeat: Heartbeat | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        if self._page is not None:
            self._heartbeat = Heartbeat(self._page, RANK_0)
            self._heartbeat.start()
            for spec in self._specs:
                rank = RankProcess(self._loop, spec, self._page, self._rank_failed, self._ask)
                self._ranks.append(rank)
            self._timer = self._loop.call_later(BEAT_S, self._look)
        gathering = Gathering(self._listener, self._roster, self._timeout_s, self._ask)
        connections = await gathering.gather()
        await self._enter(self._make_inner(connections), connections)
        for rank in self._ranks:
            rank.serving()

    async def stop(self) -> None:
        for rank in self._ranks:
            rank.ending()
        await super().stop()
        await self._all_exited(LEAVE_S)

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        for rank in self._ranks:
            rank.ending()
        await super().fail(failure, code, grace_s)

    async def kill(self) -> None:
        self._listener.close()
        await super().kill()
        if self._timer is not None:
            self._timer.cancel()
        for rank in self._ranks:
            rank.ending()
        await self._all_exited(END_S)
        for rank in self._ranks:
            rank.kill()
        await self._all_exited(END_S)
        for rank in self._ranks:
            rank.close()
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _last_words(self, failure: Failure) -> msgspec.Struct:
        return Ended(RANK_0, failure.cause, failure.age_s)

    def _hear(self, heard: Heard) -> None:
        # One that hung up without a word is named by who watches its process, or the scheduler.
        match heard.words:
            case Ended(rank, cause, age_s):
                self._fail(Failure(f"rank {rank}: {cause}", 2, age_s))
            case Leave(why):
                self._ask(f"rank {heard.rank}: {why}")

    def _rank_failed(self, failure: Failure) -> None:
        """What it said at its end goes first, where the scheduler has not read it: that may be
        stopped, and not yet for so long that it is named."""
        heard = self._ends.heard()
        if heard is not None and isinstance(heard.words, Ended):
            self._hear(heard)
        self._fail(failure)

    def _look(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._look)
        if self._page is not None and self._page.accused(RANK_0):
            self._fail(own_standstill(RANK_0))
        for rank in self._ranks:
            rank.look(self._settings.stall_s, self._settings.start_stall_s)

    async def _all_exited(self, timeout_s: float) -> None:
        """Returns when all have exited or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                for rank in self._ranks:
                    await rank.exited.wait()
        except TimeoutError:
            late = [rank.who for rank in self._ranks if not rank.exited.is_set()]
            _log.warning("%s: still there after %g s", ", ".join(late), timeout_s)
