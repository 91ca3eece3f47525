"""Rank 0's scheduler actor: it gathers a tick's arrivals and sends each record to every rank."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from actors.channel import Arrays
from actors.context import Context
from actors.journal import LeaderJournal
from actors.messages.engine_scheduler import ColdEnded
from actors.messages.http_scheduler import Cancel
from actors.messages.scheduler_http import Queued, Refused, Seated
from actors.messages.tokenizer_scheduler import Arrive, Stopped
from actors.ticking import TickingActor
from dgpp.cache.cold_votes import ColdVotes
from dgpp.net.journal_errors import RankFailedError
from dgpp.net.journal_messages import ColdEnd, Point
from dgpp.sched import outcomes
from dgpp.sched.admission import request_of
from dgpp.sched.request import Record, Submit
from dgpp.sched.scheduler import Taken
from dgpp.sched.verdict import Verdict

HTTP = "scheduler>http"

EARLY_CANCELS = 1024
"""Cancels kept for requests that have not arrived; older ones were never submitted at all."""

RECORD_PROMPT_BYTES = 16 << 20
"""A record that holds prompts of this much takes no further request in."""

QUIET_S = 0.02
"""Without news for so long, nothing of an answered request is on its way any more."""


class SchedulerActor(TickingActor):
    """Ticks whenever the scheduler may and there is news or work.

    An idle engine waits `admission_gather_ms` for the rest of a burst, so that its requests
    enter in one tick. In a world of several ranks a record goes to the others before its tick.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        boot = self.boot
        self._journal: LeaderJournal | None = None
        world = boot.settings.world_size
        self._cold = ColdVotes(world)
        if boot.journal is not None:
            self._journal = LeaderJournal(
                context, boot.journal, world, self.advance, self._cold_ended
            )
        self._gather_s = boot.settings.engine.admission_gather_ms / 1e3
        self._gathering: asyncio.TimerHandle | None = None
        self._arrivals: deque[tuple[tuple[Submit, ...], int]] = deque()
        self._cancels: list[str] = []
        self._stops: list[str] = []
        self._choices: dict[str, list[str]] = {}
        self._early_cancels: dict[str, None] = {}

    async def start(self) -> None:
        if self._journal is not None:
            await self._journal.open()

    async def serve(self) -> None:
        if self._journal is not None:
            await self._journal.warm()
        self._report.begin()
        # What the disks hold may have been told before.
        self.advance()

    async def drain(self, timeout_s: float) -> None:
        """Clients are answered; let what they left come to rest, so that all ranks end alike."""
        before = -1
        while self._busy or self._ticks != before:
            before = self._ticks
            await asyncio.sleep(QUIET_S)

    async def stop(self) -> None:
        if self._journal is not None:
            await self._journal.stop(self._ticks, self.point, idle=not self._busy)
        await super().stop()

    async def fail(self, cause: str, code: str, age_s: float) -> None:
        if self._journal is not None:
            self._journal.tell(0, cause, age_s)

    def broke(self, error: BaseException) -> None:
        if self._journal is not None and not isinstance(error, RankFailedError):
            self._journal.tell(0, f"{type(error).__name__}: {error}", 0.0)

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Verdict():
                self.decided(message)
            case Arrive():
                self._arrive(message)
            case Stopped():
                self._stops.append(message.id)
                self.advance()
            case Cancel():
                self._cancel(message.id)
            case ColdEnded():
                self.cold_news(message)
                self._cold_ended(0, ColdEnd(message.op, message.ok, message.points))

    def next_record(self) -> Record | None:
        if self._gathering is not None or not (self._news or self._scheduler.has_work):
            return None
        if self._journal is not None and not self._journal.may_tick:
            return None
        live = self._choices
        stops = [choice for choice in self._stops if choice in live.get(request_of(choice), ())]
        record = Record(
            self._ticks,
            self._take_arrivals(),
            tuple(self._cancels),
            tuple(stops),
            self._cold.take(),
        )
        self._cancels.clear()
        self._stops.clear()
        self._report.cancelling(0)
        for request in dict.fromkeys(request_of(submit.id) for submit in record.submits):
            if request in live:
                self.context.post(HTTP, Queued(request))
        return record

    def taken(self, taken: Taken, before: Point) -> None:
        # What was refused travels nowhere.
        if self._journal is not None:
            self._journal.tick(taken.record, before)

    def tell(self, news: Sequence[outcomes.Outcome]) -> None:
        for outcome in news:
            match outcome:
                case outcomes.Refused():
                    request = request_of(outcome.id)
                    if self._ended(outcome.id):
                        self.context.post(HTTP, Refused(request, outcome.code, outcome.message))
                case outcomes.Admitted():
                    now = self.context.clock_ns()
                    self.context.post(HTTP, Seated(outcome.id, outcome.slot, now))
                case outcomes.Retired():
                    self._ended(outcome.id)

    @property
    def _news(self) -> bool:
        return bool(self._arrivals or self._cancels or self._stops or self._cold.settled)

    @property
    def _busy(self) -> bool:
        scheduler = self._scheduler
        return self._news or scheduler.has_work or scheduler.outstanding is not None

    def _cold_ended(self, rank: int, end: ColdEnd) -> None:
        self._cold.tell(rank, end.op, end.points, ok=end.ok)
        if self._cold.settled:
            self.advance()

    def _arrive(self, message: Arrive) -> None:
        if message.id in self._early_cancels:
            del self._early_cancels[message.id]
            return
        submits = message.submits()
        self._choices[message.id] = [submit.id for submit in submits]
        self._arrivals.append((submits, sum(map(len, message.prompts))))
        self._report.arrived(submits)
        arriving = sum(len(choices) for choices, _ in self._arrivals)
        self._report.levels(self._scheduler.statistics(), arriving)
        if self._gather_s and self._scheduler.idle and self._scheduler.outstanding is None:
            if self._gathering is None:
                self._gathering = self.context.call_later(self._gather_s, self._gathered)
        else:
            self.advance()

    def _take_arrivals(self) -> tuple[Submit, ...]:
        """Whole requests, as many as one record holds."""
        taken: list[Submit] = []
        size = 0
        while self._arrivals and size < RECORD_PROMPT_BYTES:
            submits, prompt_bytes = self._arrivals.popleft()
            taken.extend(submits)
            size += prompt_bytes
        return tuple(taken)

    def _gathered(self) -> None:
        self._gathering = None
        self.advance()

    def _cancel(self, request: str) -> None:
        choices = self._choices.get(request)
        if choices is None:
            # A cancel may overtake the submission it is meant for: they come by two channels.
            self._early_cancels[request] = None
            if len(self._early_cancels) > EARLY_CANCELS:
                del self._early_cancels[next(iter(self._early_cancels))]
            return
        self._cancels.extend(choices)
        self._report.cancelling(len(self._cancels))
        self.advance()

    def _ended(self, choice: str) -> bool:
        """Forget `choice`; True when it was the last of its request."""
        request = request_of(choice)
        choices = self._choices.get(request)
        if choices is None:
            return False
        choices.remove(choice)
        if choices:
            return False
        del self._choices[request]
        return True
