"""Scheduler, engine and sampler of one rank, without actors: requests in, tokens and logits out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.sampler import NeedRows, Sampler
from dgpp.sample.tables import TableWriter, allocate_tables
from dgpp.sched.memory import CachePolicy
from dgpp.sched.outcomes import Admitted
from dgpp.sched.request import Record, Submit
from dgpp.sched.scheduler import Scheduler


@dataclass
class Answer:
    """Tokens, the whole logits of the row that each was drawn from, and what was cached."""

    tokens: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    cached: int = 0


class Loop:
    """One engine under one scheduler; `serve` runs requests to their end."""

    def __init__(self, engine: ModelEngine, **settings) -> None:
        limits = engine.limits
        self.engine = engine
        self.scheduler = Scheduler(limits, cache_policy=CachePolicy(min_tokens=0), **settings)
        self.answers: dict[str, Answer] = {}
        self._sampler = Sampler(limits.slots)
        self._tables = TableWriter(allocate_tables(limits.slots, limits.vocab_size))
        self._ids: dict[int, str] = {}
        self._ticks = 0

    def serve(self, *submits: Submit) -> list[Answer]:
        self.tick(*submits)
        while self.scheduler.has_work:
            self.tick()
        self.scheduler.check()
        return [self.answers[submit.id] for submit in submits]

    def tick(self, *submits: Submit, cancels: tuple[str, ...] = ()) -> None:
        step = self.scheduler.tick(Record(self._ticks, submits, cancels))
        self._ticks += 1
        for outcome in step.outcomes:
            if isinstance(outcome, Admitted):
                self.answers[outcome.id] = Answer(cached=outcome.cached_tokens)
        plan = step.plan
        if plan is None:
            return
        self._ids.update({opened.slot: opened.request.id for opened in plan.opens})
        self._sampler.prepare(plan)
        self._tables.advance(plan)
        self.engine.launch(plan, self._tables.tables)
        candidates = self.engine.collect(plan.step)
        slots = plan.sampled_slots()
        logits = self.engine.full_rows(plan.step, list(range(len(slots)))) if slots else []
        found = self._sampler.step(plan, candidates)
        while isinstance(found, NeedRows):
            found = self._sampler.resume(self.engine.full_rows(plan.step, found.rows))
        for slot, row, decided in zip(slots, logits, found.verdict.slots, strict=True):
            answer = self.answers[self._ids[slot]]
            answer.tokens += decided.tokens
            answer.logits.append(np.array(row))
        self.scheduler.apply(found.verdict)
