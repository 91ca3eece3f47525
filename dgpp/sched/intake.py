"""What a record brings: checked, ordered, and let into the queue or refused."""

from __future__ import annotations

from collections.abc import Container

from dgpp.sched.admission import (
    CONTEXT_LENGTH_EXCEEDED,
    OVERLOADED,
    TOO_MANY_CHOICES,
    Door,
    context_refusal,
    groups,
)
from dgpp.sched.choice import Choice
from dgpp.sched.errors import SubmitContractError
from dgpp.sched.growth import Growth
from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Outcome, Refused
from dgpp.sched.request import HIGHEST_PRIORITY, Record, Submit
from dgpp.sched.seating import Seating


class Intake:
    """Newcomers to the queue of `seating`."""

    def __init__(
        self, limits: EngineLimits, seating: Seating, growth: Growth, queue_limit: int
    ) -> None:
        self.queue_limit = queue_limit
        self.submitted = 0
        self.refused = 0
        self._arrivals = 0
        self._limits = limits
        self._seating = seating
        self._growth = growth

    def check(self, submits: tuple[Submit, ...], live: Container[str]) -> None:
        """Raise SubmitContractError where one of `submits` should not have got here."""
        seen: set[str] = set()
        for submit in submits:
            fault = None
            if submit.id in live or submit.id in seen:
                fault = "its id is live already"
            elif not submit.prompt or len(submit.prompt) % 4:
                fault = f"its prompt of {len(submit.prompt)} bytes is not one or more u32 ids"
            elif submit.max_tokens < 0:
                fault = f"max_tokens {submit.max_tokens} is below 0"
            elif abs(submit.priority) > HIGHEST_PRIORITY:
                fault = f"priority {submit.priority} is outside ±{HIGHEST_PRIORITY}"
            elif len(submit.boundaries) % 4:
                fault = f"its boundaries of {len(submit.boundaries)} bytes are not u32 positions"
            if fault is not None:
                raise SubmitContractError(f"scheduler: submit {submit.id!r}: {fault}")
            seen.add(submit.id)

    def take(
        self, record: Record, *, idle: bool, outcomes: list[Outcome]
    ) -> tuple[list[Choice], list[Submit]]:
        """(choices that enter the queue, submits that the same record cancels). `idle`: nothing is
        live, so that who does not fit now never will. Those who are refused leave no trace: the
        others are numbered as if they had never come."""
        self.submitted += len(record.submits)
        cancelled = set(record.cancels)
        door = self._door()
        accepted: list[Choice] = []
        gone: list[Submit] = []
        # The order of admission, so that the door refuses those who would be served last.
        for group in sorted(groups(record.submits), key=lambda g: -g[0].priority):
            staying = [s for s in group if s.id not in cancelled]
            gone += [s for s in group if s.id in cancelled]
            choices = [self._choice(s) for s in staying]
            refusal = self._refusal(choices, door)
            if refusal is not None and refusal[0] == OVERLOADED and idle and not accepted:
                # The machine is all theirs and too small: no later time will be better.
                refusal = (TOO_MANY_CHOICES, self._too_many(choices))
            if refusal is None:
                accepted.extend(choices)
            else:
                self.refused += len(staying)
                outcomes.extend(Refused(s.id, *refusal) for s in staying)
        self._number(record, accepted, gone)
        return sorted(accepted, key=lambda c: c.arrival), gone

    def _number(self, record: Record, accepted: list[Choice], gone: list[Submit]) -> None:
        """Give each choice its arrival number, in the record's order."""
        choices = {choice.submit.id: choice for choice in accepted}
        ended = {submit.id for submit in gone}
        for submit in record.submits:
            if (choice := choices.get(submit.id)) is not None:
                choice.arrival = self._arrivals
            elif submit.id not in ended:
                continue
            self._arrivals += 1

    def _door(self) -> Door:
        seating = self._seating
        openings = seating.openings()
        return Door(self.queue_limit, len(seating.waiting), openings, seating.memory.available)

    def _too_many(self, choices: list[Choice]) -> str:
        most = self._limits.blocks // max(c.need for c in choices)
        at_once = min(self._limits.slots, most)
        return (
            f"{len(choices)} choices of this length are too many: {at_once} are served at once "
            f"(engine.max_concurrency, kv_capacity) and {self.queue_limit} may wait "
            "(engine.queue_limit)"
        )

    def _choice(self, submit: Submit) -> Choice:
        # A greedy pick is always made; a sampled one may have to be fed again.
        runs_ahead = submit.runs_ahead and (self._limits.refeeds or submit.sampling.greedy)
        need = self._growth.first(submit)
        return Choice(submit, -1, submit.prompt_tokens, need, runs_ahead)

    def _refusal(self, choices: list[Choice], door: Door) -> tuple[str, str] | None:
        for choice in choices:
            message = context_refusal(self._limits, choice.prompt_tokens, choice.submit.max_tokens)
            if message is not None:
                return CONTEXT_LENGTH_EXCEEDED, message
        return None if door.accepts(choices) else (OVERLOADED, door.refusal())
