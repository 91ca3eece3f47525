"""What the scheduler's actor does on every rank: records to plans, verdicts in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from actors.boot import Boot
from actors.context import Context
from actors.messages.engine_scheduler import ColdEnded
from actors.opstream import OpStreamFile
from actors.reporting import SchedulerReport
from actors.role import Role
from actors.spec import who
from actors.step_watch import StepWatch
from dgpp.net.journal_messages import Point
from dgpp.sched.memory import CachePolicy
from dgpp.sched.operations import Sink
from dgpp.sched.outcomes import Outcome
from dgpp.sched.plan import Plan
from dgpp.sched.request import Record
from dgpp.sched.scheduler import Scheduler, Taken
from dgpp.sched.verdict import Verdict

_log = logging.getLogger("dgpp.scheduler")

ENGINE = "scheduler>engine"
SAMPLER = "scheduler>sampler"


class TickingActor(Role):
    """Ticks while the scheduler may and `next_record` has one. What it decides goes to `tell`.

    The order of ticks and verdicts follows from the scheduler's state alone: a verdict that came
    before the plan that is due ahead of it waits.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._operations = self.operations_file() if self.boot.settings.world_size > 1 else None
        self._scheduler = new_scheduler(
            self.boot, self._operations.write if self._operations else None
        )
        self._verdicts: deque[Verdict] = deque()
        self._ticks = 0
        self._watch = StepWatch(who(context.role, context.rank))
        context.watch(self._watch.look)
        self._report = SchedulerReport(
            context, self.boot.settings.engine.stats_interval_s, requests=self.boot.rank == 0
        )

    async def stop(self) -> None:
        self._report.end(self._scheduler.statistics())
        if self._operations is not None:
            self._operations.close()

    def operations_file(self) -> OpStreamFile:
        """Where this rank, one of several, keeps its operation stream."""
        return OpStreamFile.of(self.boot)

    def next_record(self) -> Record | None:
        """The record of the tick that may come now; None where there is none yet."""
        raise NotImplementedError

    def taken(self, taken: Taken, before: Point) -> None:
        """One of several ranks took this in; `before` it, the scheduler stood there."""

    def tell(self, news: Sequence[Outcome]) -> None:
        """Outcomes, for those who wait for them."""

    def rested(self) -> None:
        """Nothing more can be done before something arrives."""

    @property
    def point(self) -> Point:
        """Where the scheduler stands, as ranks compare it."""
        return Point(self._watch.decided, self._scheduler.digest(), self._scheduler.prefix_digest())

    def decided(self, verdict: Verdict) -> None:
        """The sampler decided a step."""
        self._verdicts.append(verdict)
        self.advance()

    def cold_news(self, ended: ColdEnded) -> None:
        """This rank's disk tier has ended an operation; what comes of it all ranks say together."""
        if ended.inventory is not None:
            self._scheduler.offer(ended.inventory)
        if ended.error:
            _log.warning("disk tier: operation %d: %s", ended.op, ended.error)

    def advance(self) -> None:
        """Do all that can be done now."""
        scheduler = self._scheduler
        while True:
            if scheduler.may_tick:
                record = self.next_record()
                if record is None:
                    break
                self._tick(record)
            elif self._verdicts:
                self._apply(self._verdicts.popleft())
            else:
                break
        self.rested()

    def _tick(self, record: Record) -> None:
        self._ticks += 1
        self._report.ticked()
        before = self.point if self._operations is not None else None
        taken = self._scheduler.take(record)
        if before is not None:
            self.taken(taken, before)
        step = self._scheduler.decide()
        self._hear(taken.outcomes)
        self._hear(step.outcomes)
        self._report.levels(self._scheduler.statistics())
        if step.plan is not None:
            self._report.planned(step.plan)
            self._watch.planned += 1
            # The sampler first: it takes in newcomers while the engine computes.
            self.context.post(SAMPLER, without_prompts(step.plan))
            self.context.post(ENGINE, step.plan)

    def _apply(self, verdict: Verdict) -> None:
        news = self._scheduler.apply(verdict)
        self._watch.decided += 1
        self._report.step(self._scheduler.statistics(), verdict)
        self._hear(news)

    def _hear(self, news: list[Outcome]) -> None:
        for outcome in news:
            self._report.outcome(outcome)
        self.tell(news)


def new_scheduler(boot: Boot, sink: Sink | None = None) -> Scheduler:
    """The scheduler that every rank of the deployment has; `sink` gets its operations."""
    engine = boot.settings.engine
    return Scheduler(
        boot.limits,
        queue_limit=engine.queue_limit,
        prefill_budget_tokens=engine.prefill_budget_tokens,
        prefill_idle_budget_tokens=engine.prefill_idle_budget_tokens,
        admission=engine.admission,
        admission_window=engine.admission_window,
        cache_policy=CachePolicy(
            engine.prefix_min_tokens,
            engine.prefix_head_snapshots,
            engine.prefix_close,
            boot.settings.nvme_cache.min_tokens,
        ),
        operations_sink=sink,
    )


def without_prompts(plan: Plan) -> Plan:
    """The plan as the sampler needs it: prompts may have megabytes, and it never reads one."""
    if not plan.opens:
        return plan
    opens = (replace(o, request=replace(o.request, prompt=b"")) for o in plan.opens)
    return replace(plan, opens=tuple(opens))
