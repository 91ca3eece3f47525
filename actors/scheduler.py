"""The scheduler's actor: it gathers a tick's arrivals, sends plans and awaits their verdicts."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from actors.channel import Arrays
from actors.context import Context
from actors.messages.http_scheduler import Cancel
from actors.messages.scheduler_http import Queued, Refused
from actors.messages.tokenizer_scheduler import Arrive, Stopped
from actors.reporting import SchedulerReport
from actors.role import Role
from dgpp.sched import outcomes
from dgpp.sched.admission import request_of
from dgpp.sched.plan import Plan
from dgpp.sched.request import Record, Submit
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Verdict

ENGINE = "scheduler>engine"
SAMPLER = "scheduler>sampler"
HTTP = "scheduler>http"

EARLY_CANCELS = 1024
"""Cancels kept for requests that have not arrived; older ones were never submitted at all."""


class SchedulerActor(Role):
    """Ticks whenever the scheduler may and there is news or work.

    An idle engine waits `admission_gather_ms` for the rest of a burst, so that its requests
    enter in one tick.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        boot = self.boot
        engine = boot.settings.engine
        self._scheduler = Scheduler(
            boot.limits,
            queue_limit=engine.queue_limit,
            prefill_budget_tokens=engine.prefill_budget_tokens,
            prefill_idle_budget_tokens=engine.prefill_idle_budget_tokens,
            admission=engine.admission,
        )
        self._gather_s = engine.admission_gather_ms / 1e3
        self._gathering: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._submits: list[Submit] = []
        self._cancels: list[str] = []
        self._stops: list[str] = []
        self._choices: dict[str, list[str]] = {}
        self._early_cancels: dict[str, None] = {}
        self._report = SchedulerReport(context, engine.stats_interval_s)

    async def serve(self) -> None:
        self._report.begin()

    async def stop(self) -> None:
        self._report.end(self._scheduler.statistics())

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Verdict():
                news = self._scheduler.apply(message)
                self._report.step(self._scheduler.statistics(), message)
                self._tell(news)
                self._advance()
            case Arrive():
                self._arrive(message)
            case Stopped():
                self._stops.append(message.id)
                self._advance()
            case Cancel():
                self._cancel(message.id)

    def _arrive(self, message: Arrive) -> None:
        if message.id in self._early_cancels:
            del self._early_cancels[message.id]
            return
        submits = message.submits()
        self._choices[message.id] = [submit.id for submit in submits]
        self._submits.extend(submits)
        self._report.arrived(submits)
        self._report.levels(self._scheduler.statistics(), len(self._submits))
        if self._gather_s and self._scheduler.idle and self._scheduler.outstanding is None:
            if self._gathering is None:
                self._gathering = self.context.call_later(self._gather_s, self._gathered)
        else:
            self._advance()

    def _gathered(self) -> None:
        self._gathering = None
        self._advance()

    def _cancel(self, request: str) -> None:
        choices = self._choices.get(request)
        if choices is None:
            # A cancel may overtake the submission it is meant for: they come by two channels.
            self._early_cancels[request] = None
            if len(self._early_cancels) > EARLY_CANCELS:
                del self._early_cancels[next(iter(self._early_cancels))]
            return
        self._cancels.extend(choices)
        self._advance()

    def _advance(self) -> None:
        """Send every plan that is due."""
        scheduler = self._scheduler
        while self._gathering is None and scheduler.may_tick:
            if not (self._submits or self._cancels or self._stops or scheduler.has_work):
                return
            self._tick()

    def _tick(self) -> None:
        scheduler = self._scheduler
        record = Record(self._ticks, tuple(self._submits), tuple(self._cancels), tuple(self._stops))
        self._ticks += 1
        for news in (self._submits, self._cancels, self._stops):
            news.clear()
        step = scheduler.tick(record)
        for request in dict.fromkeys(request_of(submit.id) for submit in record.submits):
            if request in self._choices:
                self.context.post(HTTP, Queued(request))
        self._tell(step.outcomes)
        self._report.levels(scheduler.statistics())
        if step.plan is not None:
            self._report.planned(step.plan)
            # The sampler first: it takes in newcomers while the engine computes.
            self.context.post(SAMPLER, without_prompts(step.plan))
            self.context.post(ENGINE, step.plan)

    def _tell(self, news: list[outcomes.Outcome]) -> None:
        for outcome in news:
            self._report.outcome(outcome)
            match outcome:
                case outcomes.Refused():
                    request = request_of(outcome.id)
                    if self._ended(outcome.id):
                        self.context.post(HTTP, Refused(request, outcome.code, outcome.message))
                case outcomes.Retired():
                    self._ended(outcome.id)

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


def without_prompts(plan: Plan) -> Plan:
    """The plan as the sampler needs it: prompts may have megabytes, and it never reads one."""
    if not plan.opens:
        return plan
    opens = (replace(o, request=replace(o.request, prompt=b"")) for o in plan.opens)
    return replace(plan, opens=tuple(opens))
