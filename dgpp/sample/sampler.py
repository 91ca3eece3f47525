"""The sampler of one rank: all slots of a plan, from candidates to a verdict."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dgpp.errors import DgppError
from dgpp.sample.candidates import Candidates
from dgpp.sample.rows import Rows
from dgpp.sample.slot import SlotSampler, SlotStep
from dgpp.sched.plan import Plan
from dgpp.sched.verdict import SlotVerdict, Verdict


class SamplerOrderError(DgppError, ValueError):
    """A plan names a slot that nobody opened, or whole rows came that nobody asked for."""


class NeedRows(NamedTuple):
    """These rows' candidates did not decide; `Sampler.resume` wants them whole."""

    step: int
    rows: list[int]


class Sampled(NamedTuple):
    """The step's verdict, and per sampled slot, in the same order, what the readers get."""

    verdict: Verdict
    steps: list[SlotStep]


class Sampler:
    """Keeps the state of every slot and turns plans and candidates into verdicts.

    Per plan: `prepare`, then `step`, then `resume` for as long as NeedRows comes back (at most
    once a row). The candidates must stay readable until Sampled comes.
    """

    def __init__(self, slots: int) -> None:
        self._slots: list[SlotSampler | None] = [None] * slots
        self._plan: Plan | None = None
        self._rows: Rows | None = None
        self._asked: list[int] = []
        self._done: list[SlotStep | int] = []

    def prepare(self, plan: Plan) -> None:
        """Forget closed slots and take in opened ones."""
        slots = self._slots
        for slot in plan.closes:
            slots[slot] = None
        for opened in plan.opens:
            slots[opened.slot] = SlotSampler(opened.request)

    def step(self, plan: Plan, candidates: Candidates) -> Sampled | NeedRows:
        """Decide the prepared `plan`, whose engine found `candidates`.

        Raises CandidatesMismatchError where the rows are not the plan's, SamplerOrderError where
        a slot was never opened.
        """
        sampled = plan.sampled_slots()
        rows = Rows(candidates, len(sampled))
        self._plan, self._rows = plan, rows
        self._done = [
            self._holder(slot).step(rows, start, end)
            for slot, (start, end) in zip(sampled, rows.spans, strict=True)
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
        steps = [result for result in self._done if not isinstance(result, int)]
        if len(steps) != len(self._done):
            self._asked = [result for result in self._done if isinstance(result, int)]
            return NeedRows(plan.step, self._asked)
        self._plan, self._rows, self._asked = None, None, []
        verdicts = tuple(
            SlotVerdict(slot, step.tokens, step.finish)
            for slot, step in zip(sampled, steps, strict=True)
        )
        return Sampled(Verdict(plan.step, verdicts), steps)

    def _holder(self, slot: int) -> SlotSampler:
        holder = self._slots[slot]
        if holder is None:
            raise SamplerOrderError(f"sampler: the plan samples slot {slot}, which is not open")
        return holder
