"""A plan that is out: which choice each of its sampled rows is of, and whether the row counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dgpp.sched.choice import Choice
from dgpp.sched.errors import VerdictContractError
from dgpp.sched.plan import Plan
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict


class Flight(NamedTuple):
    """`rows` are the sampled rows in order: the choice and the course on which it was planned.

    Rows belong to choices, not to slots: a slot may be closed and given away while a plan that
    holds a row of its former choice is out.
    """

    plan: Plan
    rows: tuple[tuple[Choice, int], ...]

    def decided(self, verdict: Verdict) -> Iterator[tuple[Choice, SlotVerdict]]:
        """The rows that still count, each with its verdict; to be taken one after the other."""
        for (choice, course), decided in zip(self.rows, verdict.slots, strict=True):
            if course == choice.course:
                yield choice, decided

    def check(self, verdict: Verdict) -> None:
        """Raise VerdictContractError where `verdict` does not fit."""
        plan = self.plan
        slots = [v.slot for v in verdict.slots]
        if slots != plan.sampled_slots():
            raise VerdictContractError(
                f"scheduler: verdict of step {plan.step} decides slots {slots}, the plan samples "
                f"{plan.sampled_slots()}"
            )
        for choice, decided in self.decided(verdict):
            _check_tokens(choice, decided)


def launched(plan: Plan, holders: Sequence[Choice | None]) -> Flight:
    """`plan`, whose slots belong to `holders`, goes out."""
    rows = []
    for slot in plan.sampled_slots():
        choice = holders[slot]
        assert choice is not None
        rows.append((choice, choice.course))
    return Flight(plan, tuple(rows))


def _check_tokens(choice: Choice, decided: SlotVerdict) -> None:
    count = len(decided.tokens)
    left = choice.submit.max_tokens - choice.produced - count
    ends = decided.finish is not Finish.NONE
    if left < 0 or (not ends and (left == 0 or not count)) or (choice.ahead > 1 and count > 1):
        raise VerdictContractError(
            f"scheduler: {choice.submit.id!r} in slot {decided.slot} has "
            f"{choice.produced} of {choice.submit.max_tokens} tokens and got "
            f"{count} with finish {decided.finish.name}"
        )
