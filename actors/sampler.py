"""The sampler's actor: it decides a step's tokens and tells the scheduler and the readers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.channel import Arrays
from actors.context import Context
from actors.guidance import Guidance
from actors.messages.engine_sampler import FullRow, Scored, Selected
from actors.messages.sampler_engine import WantRow
from actors.messages.sampler_tokenizer import Committed, Tokens
from actors.metrics import MOST_DRAFTS, SAMPLER
from actors.role import Role
from dgpp.sample.candidates import Candidates
from dgpp.sample.sampler import NeedRows, Sampled, Sampler
from dgpp.sample.scored import ScoredPrompt
from dgpp.sample.slot import SlotStep
from dgpp.sched.plan import Plan

ENGINE = "sampler>engine"
SCHEDULER = "sampler>scheduler"
TOKENIZER = "sampler>tokenizer"


class SamplerActor(Role):
    """Plans come from the scheduler and candidates from the engine; each in order, either ahead.

    Steps are decided one after the other: the next plan is prepared when the one before is decided,
    since a slot may change hands between them.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sampler = Sampler(self.boot.limits.slots)
        self._guidance = Guidance(context, self.boot)
        self._plans: deque[Plan] = deque()
        self._selected: deque[tuple[Candidates, Arrays]] = deque()
        self._is_prepared = False
        self._has_readers = context.has(TOKENIZER)
        self._rows: dict[int, npt.NDArray[np.float32] | None] = {}
        block = context.statistics
        self._counters = {metric.name: block.counter(metric.name) for metric in SAMPLER}
        self._scored: dict[int, tuple[ScoredPrompt, ...]] = {}

    async def start(self) -> None:
        await self._guidance.start()

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Plan():
                self._plans.append(message)
                self._decide()
            case Selected():
                # Rows sent for later are resolved against these: they outlive this handler.
                arrays.retain()
                self._selected.append((Candidates(*arrays), arrays))
                self._decide()
            case FullRow():
                self._take_row(message.row, arrays[0])
            case Scored(step, prompts):
                self._scored[step] = prompts

    def _decide(self) -> None:
        """Go on with the first plan that is not decided, unless whole rows of it are awaited."""
        if not self._plans or self._rows:
            return
        plan = self._plans[0]
        if not self._is_prepared:
            # Without waiting for the candidates: newcomers are taken in while the engine computes.
            self._tell(self._sampler.prepare(plan))
            self._guidance.prepare(plan)
            self._is_prepared = True
        if self._selected:
            self._proceed(self._sampler.step(plan, self._selected[0][0], self._guidance.stuck))

    def _take_row(self, row: int, values: npt.NDArray[np.float32]) -> None:
        self._rows[row] = values.copy()
        rows = list(self._rows.values())
        if all(r is not None for r in rows):
            self._rows.clear()
            self._proceed(self._sampler.resume(np.stack([r for r in rows if r is not None])))

    def _proceed(self, result: Sampled | NeedRows) -> None:
        if isinstance(result, NeedRows):
            self._rows = dict.fromkeys(result.rows)
            for row in result.rows:
                self.context.post(ENGINE, WantRow(result.step, row))
            return
        self._count(result.drafted)
        self._guidance.advance(result.verdict)
        self._selected.popleft()[1].release()
        self._plans.popleft()
        self._is_prepared = False
        steps = result.steps
        if self._scored:
            steps = self._sampler.scores(self._scored.pop(result.verdict.step, ())) + steps
        # Readers first: the client waits for them, the next step for the scheduler.
        self._tell(steps)
        self.context.post(SCHEDULER, result.verdict)
        self._decide()

    def _count(self, drafted: Sequence[tuple[int, int]]) -> None:
        for fed, kept in drafted:
            for name, amount in (("drafts", 1), ("draft_tokens", fed), ("accepted_tokens", kept)):
                self._counters[name].add(amount)
            for position in range(min(fed, MOST_DRAFTS)):
                self._counters[f"drafted_{position}"].add()
                if position < kept:
                    self._counters[f"accepted_{position}"].add()

    def _tell(self, steps: Sequence[SlotStep]) -> None:
        if steps and self._has_readers:
            items = tuple(Tokens(*step) for step in steps)
            self.context.post(TOKENIZER, Committed(items, self.context.clock_ns()))
