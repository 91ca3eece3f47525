"""Drives a scheduler with one token a sampled row, as an engine and a sampler would."""

from __future__ import annotations

from collections.abc import Callable

from dgpp.sched.outcomes import Admitted, Outcome
from dgpp.sched.request import Record, Submit, pack_ids
from dgpp.sched.scheduler import Scheduler, Step
from dgpp.sched.verdict import SlotVerdict, Verdict, commit

Tokens = Callable[[Submit, int], list[int]]


def submit(choice_id: str, prompt: int, max_tokens: int, priority: int = 0) -> Submit:
    return Submit(
        choice_id, pack_ids(range(1, prompt + 1)), max_tokens, stop_ids=(99,), priority=priority
    )


class Driver:
    """Ticks `scheduler` and answers each plan at once, by `tokens(submit, produced)`."""

    def __init__(self, scheduler: Scheduler, tokens: Tokens = lambda s, n: [1]) -> None:
        self.scheduler = scheduler
        self.outcomes: list[Outcome] = []
        self.admitted: list[str] = []
        self._tokens = tokens
        self._ticks = 0
        self._holders: dict[int, Submit] = {}
        self._produced: dict[int, int] = {}

    def tick(
        self, *submits: Submit, cancels: tuple[str, ...] = (), stops: tuple[str, ...] = ()
    ) -> Step:
        step = self.scheduler.tick(Record(self._ticks, submits, cancels, stops))
        self._ticks += 1
        self._note(step.outcomes)
        if step.plan is not None:
            for slot in step.plan.closes:
                del self._holders[slot]
            for opened in step.plan.opens:
                assert opened.slot not in self._holders
                self._holders[opened.slot] = opened.request
                self._produced[opened.slot] = 0
            decided = [self._decide(slot) for slot in step.plan.sampled_slots()]
            self._note(self.scheduler.apply(Verdict(step.plan.step, tuple(decided))))
        return step

    def run(self, most: int = 10_000) -> None:
        """Tick until nothing is left to do."""
        for _ in range(most):
            if not self.scheduler.has_work:
                return
            assert self.tick().plan is not None
        raise AssertionError(f"work remains after {most} ticks")

    def _decide(self, slot: int) -> SlotVerdict:
        request = self._holders[slot]
        produced = self._produced[slot]
        tokens = self._tokens(request, produced)
        kept, finish = commit(tokens, produced, request.max_tokens, request.stop_ids)
        self._produced[slot] += len(kept)
        return SlotVerdict(slot, kept, finish)

    def _note(self, outcomes: list[Outcome]) -> None:
        self.outcomes += outcomes
        self.admitted += [o.id for o in outcomes if isinstance(o, Admitted)]
