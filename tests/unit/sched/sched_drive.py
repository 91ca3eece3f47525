"""Drives a scheduler with one token a sampled row, as an engine and a sampler would."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paper_disk import PaperDisk
from paper_engine import PaperEngine

from dgpp.cache.cold_ops import INVENTORY, ColdDone
from dgpp.sched.outcomes import Admitted, Outcome
from dgpp.sched.plan import FED, Plan
from dgpp.sched.request import Record, Submit, pack_ids
from dgpp.sched.scheduler import Scheduler, Step
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict, commit

Tokens = Callable[[Submit, int], list[int]]


def PLAIN(request: Submit, produced: int) -> list[int]:
    """One token a step, always the same."""
    return [1]


def submit(choice_id: str, prompt: int, max_tokens: int, priority: int = 0, **rest) -> Submit:
    return Submit(
        choice_id,
        pack_ids(range(1, prompt + 1)),
        max_tokens,
        stop_ids=(99,),
        priority=priority,
        **rest,
    )


@dataclass
class Holder:
    """What the engine and the sampler know of the choice in a slot. `fed` holds the token at each
    position that a row of it fed, None for a pick that the engine did not make."""

    request: Submit
    blocks: tuple[int, ...]
    fed: dict[int, int | None]
    produced: int = 0
    pick: int | None = None
    is_fed: bool = False
    ended: bool = False


class Driver:
    """Ticks `scheduler` and answers its plans, by `tokens(submit, produced)`, as late as it may.

    `picks(submit, produced)` says whether the engine picks that token itself; above depth 0 alone.
    `void` counts rows that said nothing. `single`: `tokens` gives one token a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokens: Tokens = PLAIN,
        picks: Callable[[Submit, int], bool] = lambda s, n: True,
        *,
        single: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.outcomes: list[Outcome] = []
        self.admitted: list[str] = []
        self.answers: dict[str, list[int]] = {}
        self.void = 0
        self._depth = scheduler.limits.depth
        # Steps of several tokens feed drafts that no plan names.
        self._plain = single or tokens is PLAIN or self._depth > 0
        self._tokens = tokens
        self._picks = picks
        self._ticks = 0
        self._out: deque[Plan] = deque()
        self.engine = PaperEngine(scheduler.limits)
        self.disk = PaperDisk(self.engine)
        self.cold: list[ColdDone] = []
        if scheduler.limits.cold_pages:
            self.cold.append(ColdDone(INVENTORY, ok=True))
        self._holders: dict[int, Holder] = {}

    def tick(
        self, *submits: Submit, cancels: tuple[str, ...] = (), stops: tuple[str, ...] = ()
    ) -> Step:
        cold, self.cold = tuple(self.cold), []
        step = self.scheduler.tick(Record(self._ticks, submits, cancels, stops, cold))
        self._ticks += 1
        self._note(step.outcomes)
        if step.plan is not None:
            self._out.append(step.plan)
        while self._out and not self.scheduler.may_tick:
            self._answer(self._out.popleft())
        return step

    def run(self, most: int = 10_000) -> None:
        """Tick until nothing is left to do, the disk included."""
        for _ in range(most):
            if not self.scheduler.has_work and not self._out:
                if (done := self.disk.finish(ok=True)) is None:
                    assert self.scheduler.idle
                    return
                self.cold.append(done)
                self.tick()
                continue
            # Under `grow` the one row that was due ahead may wait for blocks of a choice that ends.
            ahead = self.scheduler.outstanding is not None
            assert self.tick().plan is not None or ahead or not self.scheduler.has_work
        raise AssertionError(f"work remains after {most} ticks")

    def _answer(self, plan: Plan) -> None:
        picks = {slot: holder.pick for slot, holder in self._holders.items()}
        if not self.scheduler.limits.max_drafts and self._plain:
            self.engine.run(plan, {slot: -7 if p is None else p for slot, p in picks.items()})
        self.disk.take(plan)
        for slot in plan.closes:
            del self._holders[slot]
        for opened in plan.opens:
            assert opened.slot not in self._holders
            self._holders[opened.slot] = Holder(opened.request, opened.blocks, {})
        rows = {row.slot: row for row in plan.decodes}
        decided = []
        for slot in plan.sampled_slots():
            holder = self._holders[slot]
            if slot in rows:
                row = rows[slot]
                holder.fed[row.position] = holder.pick if row.token == FED else row.token
                assert row.token != FED or self._depth
            if holder.ended or (slot in rows and rows[slot].token == FED and not holder.is_fed):
                self.void += 1
                holder.pick = None
                decided.append(SlotVerdict(slot, ()))
            else:
                decided.append(self._decide(slot, holder))
        self._note(self.scheduler.apply(Verdict(plan.step, tuple(decided))))

    def _decide(self, slot: int, holder: Holder) -> SlotVerdict:
        request, produced = holder.request, holder.produced
        answer = self.answers.setdefault(request.id, [])
        # What was fed so far is the answer, each token at its own position. (A step of several
        # tokens feeds the others as drafts, which no plan names.)
        for place, token in enumerate(answer):
            drafted = None if self._depth else token
            assert holder.fed.get(request.prompt_tokens + place, drafted) == token
        tokens = self._tokens(request, produced)
        if self._depth:
            tokens = tokens[:1]
        kept, finish = commit(tokens, produced, request.max_tokens, request.stop_ids)
        holder.produced += len(kept)
        answer += kept
        holder.is_fed = self._depth > 0 and self._picks(request, produced)
        holder.pick = kept[-1] if holder.is_fed else None
        holder.ended = finish is not Finish.NONE
        return SlotVerdict(slot, kept, finish, holder.is_fed)

    def _note(self, outcomes: list[Outcome]) -> None:
        self.outcomes += outcomes
        self.admitted += [o.id for o in outcomes if isinstance(o, Admitted)]
