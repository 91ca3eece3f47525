"""Scheduler, engine and sampler in one loop, as many plans ahead as the engine's depth allows."""

from __future__ import annotations

from typing import Any

from dgpp.cache.cold_ops import ColdDone
from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.sampler import NeedRows, Sampled, Sampler
from dgpp.sample.tables import TableWriter, allocate_tables
from dgpp.sched.plan import Plan
from dgpp.sched.request import Record, Submit
from dgpp.sched.scheduler import Scheduler


class Served:
    """`answers` by choice: (tokens, logprobs) of each step. `decided` and `undecided` count picks
    of the engine, `asked` whole rows, `replayed` rows of recorded steps. `scored` by choice: how
    likely the tokens of its prompt were."""

    def __init__(self, engine: ModelEngine, **settings: Any) -> None:
        self.engine = engine
        limits = engine.limits
        budget = 2 * limits.chunk_align
        self.scheduler = Scheduler(limits, prefill_budget_tokens=budget, **settings)
        self.sampler = Sampler(limits.slots)
        self.writer = TableWriter(allocate_tables(limits.slots, limits.vocab_size))
        self.answers: dict[str, list] = {}
        self.scored: dict[str, list] = {}
        self.out: list[Plan] = []
        self.asked = self.undecided = self.decided = self.replayed = 0
        self._ticks = 0

    def tick(self, *submits: Submit) -> None:
        plan = self.scheduler.tick(Record(self._ticks, submits, cold=self.cold_news())).plan
        self._ticks += 1
        if plan is not None:
            self.writer.advance(plan)
            self.engine.launch(plan, self.writer.tables)
            self.launched(plan)
            self.out.append(plan)
        while self.out and not self.scheduler.may_tick:
            self._decide(self.out.pop(0))

    def run(self) -> None:
        while self.scheduler.has_work:
            self.tick()

    def cold_news(self) -> tuple[ColdDone, ...]:
        """What operations of a disk tier have come to since the last tick."""
        return ()

    def launched(self, plan: Plan) -> None:
        """The engine has begun `plan`."""

    def _decide(self, plan: Plan) -> None:
        self.sampler.prepare(plan)
        found = self.engine.collect(plan.step)
        self.replayed += self.engine.trace.replayed
        for step in self.sampler.scores(self.engine.scored):
            self.scored.setdefault(step.id, []).extend(step.prompt)
        result = self.sampler.step(plan, found)
        while isinstance(result, NeedRows):
            self.asked += len(result.rows)
            result = self.sampler.resume(self.engine.full_rows(plan.step, result.rows))
        assert isinstance(result, Sampled)
        for step in result.steps:
            self.answers.setdefault(step.id, []).append((step.tokens, step.logprobs))
        fed = [decided.fed for decided in result.verdict.slots if decided.tokens]
        self.decided += sum(fed)
        self.undecided += len(fed) - sum(fed)
        self.scheduler.apply(result.verdict)
