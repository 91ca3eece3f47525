"""The journal as a rank's scheduler uses it: rank 0 leads, the others follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from actors.context import Context
from actors.journal_link import JournalLink
from dgpp.net.journal_errors import (
    FrameError,
    JournalContractError,
    RankFailedError,
    ReleasedError,
)
from dgpp.net.journal_follower import Follower
from dgpp.net.journal_frames import FROM_LEADER_BYTES, FROM_RANK_BYTES, encode
from dgpp.net.journal_leader import AHEAD_TICKS, Leader, Phase
from dgpp.net.journal_messages import (
    Beat,
    ColdEnd,
    Ended,
    FromLeader,
    FromRank,
    Leave,
    Point,
    Ready,
    Stop,
    Tick,
    Warm,
)
from dgpp.net.journal_silence import BEAT_S
from dgpp.sched.request import Record

STOP_S = 4.0
"""How long rank 0 waits for the others' last digests; a silent rank is named sooner."""

GONE_S = 0.1
"""How long rank 0 waits for a better cause when a connection has ended without a word."""

_log = logging.getLogger("dgpp.journal")


class JournalLinks(msgspec.Struct, frozen=True):
    """What a rank's scheduler is told of its journal.

    `facts` is what this rank found itself to be. `unread` holds, by the rank at the other end, what
    had already come in over each connection; the connection itself is the actor's file
    `link_name(rank)`. Rank 0 leads the others by `ahead_ticks` at most.
    """

    facts: dict[str, str]
    unread: dict[int, bytes]
    ahead_ticks: int = AHEAD_TICKS


def link_name(rank: int) -> str:
    """The name of the file that is the connection to `rank`."""
    return f"journal-{rank}"


class LeaderJournal:
    """Rank 0's end. Errors end the world, after the other ranks were told.

    `on_room` is called when a tick may be sent that had to wait, `on_cold` with what a rank says
    of the disk tier.
    """

    def __init__(
        self,
        context: Context,
        links: JournalLinks,
        world: int,
        on_room: Callable[[], object],
        on_cold: Callable[[int, ColdEnd], object],
    ) -> None:
        self._context = context
        self._boot = links
        self._leader = Leader(world, links.ahead_ticks)
        self._on_room = on_room
        self._on_cold = on_cold
        self._links: dict[int, JournalLink] = {}
        self._changed = asyncio.Event()
        self._over = False
        self._asked = False
        self._waits = False

    async def open(self) -> None:
        """Take over the connections and begin to beat."""
        for rank, unread in self._boot.unread.items():
            link = JournalLink(
                FromRank,
                FROM_RANK_BYTES,
                unread,
                on_message=partial(self._receive, rank),
                on_garbage=partial(self._garbage, rank),
                on_end=partial(self._closed, rank),
            )
            self._links[rank] = link
            await self._context.connect(link_name(rank), link.itself)
        self._beat()

    async def warm(self) -> None:
        """Return when the actors of all ranks are able to serve, and all are told so."""
        while not self._leader.all_ready:
            await self._change()
        self._broadcast(encode(Warm(self._boot.facts)))
        self._leader.warm()

    @property
    def may_tick(self) -> bool:
        """Whether another record may be sent now; if not, `on_room` will be called."""
        self._waits = not self._leader.may_tick
        return not self._waits

    def tick(self, record: Record, point: Point) -> None:
        """Send `record` to every rank; the scheduler stands at `point`, before it."""
        tick = Tick.of(record, point)
        body = encode(tick)
        self._broadcast(body)
        self._leader.sent(tick, len(body))

    async def stop(self, ticks: int, point: Point, *, idle: bool) -> None:
        """End the journal in order, and say whether all ranks did the same."""
        stop = Stop(ticks, *point, idle)
        self._broadcast(encode(stop))
        self._leader.stop(stop)
        try:
            async with asyncio.timeout(STOP_S):
                while not (self._over or self._leader.phase is Phase.OVER):
                    await self._change()
        except TimeoutError:
            late = min(set(self._links) - self._leader.stopped)
            self._fail(RankFailedError(late, f"did not stop within {STOP_S:g} s", STOP_S))
        if self._leader.phase is Phase.OVER:
            said = "identical" if idle else "not compared, rank 0 stopped in mid-step"
            ranks = len(self._links) + 1
            _log.info(
                "op streams of %d ranks: %s (%d ticks, %d steps, operations %016x)",
                *(ranks, said, ticks, point.steps, point.operations),
            )
        self._close()

    def tell(self, rank: int, cause: str, age_s: float) -> None:
        """The world is over because `rank` failed by `cause`: the last that the others hear, `rank`
        too where it does not know."""
        if not self._over:
            self._broadcast(encode(Ended(rank, cause, age_s)))
            self._close()

    def _close(self) -> None:
        self._over = True
        for link in self._links.values():
            link.close()
        self._changed.set()

    def _broadcast(self, body: bytes) -> None:
        for link in self._links.values():
            link.send_body(body)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _receive(self, rank: int, message: Any) -> None:
        try:
            self._leader.receive(rank, message)
        except RankFailedError as error:
            self._fail(error)
            return
        self._changed.set()
        if self._waits and self._leader.may_tick:
            self._waits = False
            self._do(self._on_room)
        if isinstance(message, ColdEnd):
            self._do(partial(self._on_cold, rank, message))
        if self._leader.leave is not None and not self._asked:
            self._asked = True
            self._context.end_world(self._leader.leave)

    def _garbage(self, rank: int, error: FrameError) -> None:
        self._fail(RankFailedError(rank, f"journal: {error}"))

    def _do(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - any failure of an actor ends the world
            self._context.report_failure(error)

    def _closed(self, rank: int, why: str) -> None:
        # Who watches the rank's process may know better why it is gone.
        if not self._over:
            self._context.call_later(GONE_S, self._gone, rank, why)

    def _gone(self, rank: int, why: str) -> None:
        if self._over:
            return
        try:
            self._leader.closed(rank, why)
        except RankFailedError as error:
            self._fail(error)

    def _beat(self) -> None:
        if self._over:
            return
        try:
            self._leader.look()
        except RankFailedError as error:
            self._fail(error)
            return
        self._broadcast(encode(Beat()))
        self._context.call_later(BEAT_S, self._beat)

    def _fail(self, error: RankFailedError) -> None:
        if not self._over:
            self.tell(error.rank, error.cause, error.age_s)
            self._context.report_failure(error)


class FollowerJournal:
    """Another rank's end. `on_news` is called when a record or the end has come."""

    def __init__(
        self, context: Context, links: JournalLinks, rank: int, on_news: Callable[[], object]
    ) -> None:
        self._context = context
        self._boot = links
        self._rank = rank
        self._follower = Follower(rank, links.facts, links.ahead_ticks)
        self._on_news = on_news
        self._changed = asyncio.Event()
        self._over = False
        self._link = JournalLink(
            FromLeader,
            FROM_LEADER_BYTES,
            links.unread[0],
            on_message=self._receive,
            on_garbage=self._garbage,
            on_end=self._closed,
        )

    async def open(self) -> None:
        """Take over the connection and begin to beat."""
        await self._context.connect(link_name(0), self._link.itself)
        self._beat()

    async def ready(self) -> None:
        """This rank's actors are able to serve; return when those of all ranks are."""
        self._link.send(Ready())
        while not self._follower.warm:
            await self._change()

    @property
    def due(self) -> bool:
        """Whether a record waits to be applied."""
        return self._follower.due

    def next(self, point: Point) -> Record:
        """The record that is due; the scheduler stands at `point` and may tick."""
        record = self._follower.next(point)
        if (told := self._follower.acknowledgement()) is not None:
            self._link.send(told)
        return record

    def finish(self, point: Point) -> None:
        """Answer rank 0's stop once everything before it is applied; then end the world."""
        if (last := self._follower.finish(point)) is not None:
            self._link.send(last)
            self._changed.set()
            self._context.end_world("rank 0 stopped")

    def cold(self, end: ColdEnd) -> None:
        """Tell rank 0 what an operation of this rank's disk tier came to."""
        self._link.send(end)

    async def leave(self) -> None:
        """This rank is to end: ask rank 0 to stop unless it has, and return when it has."""
        if not self._follower.stopped:
            _log.info("rank 0 is asked to end the world")
            self._link.send(Leave("was asked to end"))
        while not self._follower.stopped:
            await self._change()

    def close(self) -> None:
        """End the connection."""
        self._over = True
        self._link.close()

    def tell(self, cause: str, age_s: float) -> None:
        """This rank failed: the last that rank 0 hears of it. Once it has stopped, that is no
        matter of rank 0's any more."""
        if not (self._over or self._follower.stopped):
            self._link.send(Ended(self._rank, cause, age_s))
        self.close()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _receive(self, message: Any) -> None:
        try:
            self._follower.receive(message)
        except (ReleasedError, JournalContractError) as error:
            self._fail(error)
            return
        self._changed.set()
        try:
            self._on_news()
        except Exception as error:  # noqa: BLE001 - any failure of an actor ends the world
            self._fail(error)

    def _garbage(self, error: FrameError) -> None:
        self._fail(JournalContractError(f"rank 0: journal: {error}"))

    def _closed(self, why: str) -> None:
        if self._over:
            return
        try:
            self._follower.closed(why)
        except ReleasedError as error:
            self._fail(error)

    def _beat(self) -> None:
        if self._over:
            return
        try:
            self._follower.look()
        except ReleasedError as error:
            self._fail(error)
            return
        self._link.send(Beat())
        self._context.call_later(BEAT_S, self._beat)

    def _fail(self, error: Exception) -> None:
        if self._over:
            return
        if isinstance(error, ReleasedError):
            self.close()
        self._context.report_failure(error)
