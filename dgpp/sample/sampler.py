"""The sampler of one rank: all slots of a plan, from candidates to a verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dgpp.errors import DgppError
from dgpp.sample.candidates import Candidates
from dgpp.sample.rows import Rows
from dgpp.sample.scored import ScoredPrompt
from dgpp.sample.slot import SlotSampler, SlotStep
from dgpp.sched.plan import Plan
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict


class SamplerOrderError(DgppError, ValueError):
    """A plan names a slot that nobody opened, or whole rows came that nobody asked for."""


class NeedRows(NamedTuple):
    """These rows' candidates did not decide; `Sampler.resume` wants them whole."""

    step: int
    rows: list[int]


class Sampled(NamedTuple):
    """The step's verdict, and in its order what the readers get of every row that is not void.
    `drafted` has (drafts fed, drafts that were committed) of each slot that had drafts."""

    verdict: Verdict
    steps: list[SlotStep]
    drafted: list[tuple[int, int]] = []  # noqa: RUF012 - never written to


class Sampler:
    """Keeps the state of every slot and turns plans and candidates into verdicts.

    Per plan, one plan after the other: `prepare`, then `step`, then `resume` for as long as
    NeedRows comes back (at most once a row). The candidates must stay readable until Sampled comes.
    """

    def __init__(self, slots: int) -> None:
        self._slots: list[SlotSampler | None] = [None] * slots
        self._plan: Plan | None = None
        self._rows: Rows | None = None
        self._asked: list[int] = []
        self._done: list[SlotStep | int | None] = []

    def prepare(self, plan: Plan) -> list[SlotStep]:
        """Forget closed slots and take in opened ones; the ends of those that had to give way."""
        slots = self._slots
        ended = [
            SlotStep(self._holder(slot).submit.id, (), Finish.POOL_EXHAUSTED) for slot in plan.sheds
        ]
        for slot in plan.closes:
            slots[slot] = None
        for opened in plan.opens:
            slots[opened.slot] = SlotSampler(opened.request, opened.cached_tokens, opened.decoded)
        return ended

    def scores(self, prompts: Iterable[ScoredPrompt]) -> list[SlotStep]:
        """For the readers: what the prepared plan's step found of prompts."""
        return [
            SlotStep(self._holder(found.slot).submit.id, (), Finish.NONE, prompt=found.rows)
            for found in prompts
        ]

    def step(
        self, plan: Plan, candidates: Candidates, stuck: Collection[int] = ()
    ) -> Sampled | NeedRows:
        """Decide the prepared `plan`, whose engine found `candidates`. What holds the slots `stuck`
        to a form allows neither to go on nor to end.

        Raises CandidatesMismatchError where the rows are not the plan's, PickMismatchError where
        the engine fed on a wrong token, SamplerOrderError where a slot was never opened.
        """
        sampled = plan.sampled_slots()
        rows = Rows(candidates, len(sampled))
        self._plan, self._rows = plan, rows
        for slot in stuck:
            self._holder(slot).stuck = True
        self._done = [
            None
            if (holder := self._holder(slot)).is_void(ran_ahead=ahead)
            else holder.step(rows, start, end)
            for slot, ahead, (start, end) in zip(
                sampled, plan.sampled_ahead(), rows.spans, strict=True
            )
        ]
        return self._finish(plan, sampled)

    def resume(self, full: npt.NDArray[np.float32]) -> Sampled | NeedRows:
        """Go on with the rows last asked for: float32 [rows, vocab], −inf where masked."""
        plan, rows = self._plan, self._rows
        if plan is None or rows is None or len(full) != len(self._asked):
            raise SamplerOrderError(
                f"sampler: {len(full)} whole rows came, asked for: {len(self._asked)}"
            )
        rows.add_full(self._asked, full)
        sampled = plan.sampled_slots()
        for index, result in enumerate(self._done):
            if isinstance(result, int):
                start, end = rows.spans[index]
                self._done[index] = self._holder(sampled[index]).step(rows, start, end)
        return self._finish(plan, sampled)

    def _finish(self, plan: Plan, sampled: list[int]) -> Sampled | NeedRows:
        self._asked = [result for result in self._done if isinstance(result, int)]
        if self._asked:
            return NeedRows(plan.step, self._asked)
        drafted = self._drafted()
        self._plan, self._rows = None, None
        verdicts: list[SlotVerdict] = []
        steps: list[SlotStep] = []
        for slot, step in zip(sampled, self._done, strict=True):
            if isinstance(step, SlotStep):
                steps.append(step)
                fed = self._holder(slot).fed
                verdicts.append(SlotVerdict(slot, step.tokens, step.finish, fed))
            else:
                verdicts.append(SlotVerdict(slot, ()))
        return Sampled(Verdict(plan.step, tuple(verdicts)), steps, drafted)

    def _drafted(self) -> list[tuple[int, int]]:
        assert self._rows is not None
        return [
            (end - start - 1, max(0, len(step.tokens) - 1))
            for step, (start, end) in zip(self._done, self._rows.spans, strict=True)
            if end - start > 1 and isinstance(step, SlotStep)
        ]

    def _holder(self, slot: int) -> SlotSampler:
        holder = self._slots[slot]
        if holder is None:
            raise SamplerOrderError(f"sampler: the plan samples slot {slot}, which is not open")
        return holder
