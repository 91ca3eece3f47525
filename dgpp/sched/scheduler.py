"""The scheduler: a pure state machine from records and verdicts to plans, alike on every rank.

No clock, no randomness, no unordered iteration: what it decides follows from the records alone.
Nothing ever waits for something that waits for it. A seated choice advances in every step that has
room for it and ends within its limit: under `full` admission it holds its whole footprint, under
`grow` it gets what it needs or somebody of least priority gives way. Whenever nothing is live, all
slots are free and all blocks free or the cache's to give, so the next in the queue, which the door
let in because it fits the empty pool, is admitted.

At depth D up to D + 1 plans are out. A plan made before the verdict of the one before it holds, for
each choice sampled there, the row at the position after it, whose token the engine feeds itself.
When a plan is due ahead of a verdict follows from the state alone, so records and verdicts
interleave alike on every rank. Slots and blocks of a choice that ends are free at once, also while
a row of it is out: the engine does everything in the order of the plans.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from dgpp.cache.cold_ops import Inventory
from dgpp.errors import ConfigError
from dgpp.sched.budgets import AUTO, PrefillBudgets, resolve_budgets
from dgpp.sched.choice import Choice, Phase
from dgpp.sched.errors import StepOrderError
from dgpp.sched.flight import Flight, launched
from dgpp.sched.growth import FULL, Growth
from dgpp.sched.intake import Intake
from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import CachePolicy, Memory
from dgpp.sched.operations import OperationStream, Sink
from dgpp.sched.outcomes import Began, Outcome, Remark, Retired
from dgpp.sched.plan import Plan
from dgpp.sched.prompts import Prompts
from dgpp.sched.request import Record
from dgpp.sched.seating import Seating
from dgpp.sched.slots import SlotPool
from dgpp.sched.statistics import SchedulerStatistics
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict


class Step(NamedTuple):
    """What a tick decided: the plan (None where there is nothing to do) and what to tell whom."""

    plan: Plan | None
    outcomes: list[Outcome]


class Taken(NamedTuple):
    """What was taken of a record: the same on every rank, since those who were refused are not in
    it; and what to tell whom."""

    record: Record
    outcomes: list[Outcome]


class Scheduler:
    """Admission, blocks, slots and plans for one engine.

    `tick` while `may_tick`, `apply` each verdict in the order of the plans. Raises ConfigError
    where the settings do not fit the engine's limits.
    """

    def __init__(
        self,
        limits: EngineLimits,
        *,
        queue_limit: int = 64,
        prefill_budget_tokens: int = AUTO,
        prefill_idle_budget_tokens: int = 0,
        admission: str = FULL,
        admission_window: int = 256,
        cache_policy: CachePolicy | None = None,
        operations_sink: Sink | None = None,
    ) -> None:
        if limits.depth and limits.max_drafts:
            raise ConfigError(
                f"engine limits: depth {limits.depth} with max_drafts {limits.max_drafts}: how far "
                "a step of several tokens comes is not known ahead of its verdict"
            )
        self.limits = limits
        budgets = resolve_budgets(limits, prefill_budget_tokens, prefill_idle_budget_tokens)
        self._operations = OperationStream(operations_sink)
        self._slots = SlotPool(limits.slots)
        self._memory = Memory(limits, cache_policy or CachePolicy(), operations_sink)
        self._prompts = Prompts(limits, budgets, self._memory)
        self._seating = Seating(self._slots, self._memory, self._prompts)
        self._growth = Growth(limits, self._memory, self._operations, admission, admission_window)
        self._intake = Intake(limits, self._seating, self._growth, queue_limit)
        self._live: dict[str, Choice] = {}
        self._closing: list[int] = []
        self._sheds: list[int] = []
        self._flights: deque[Flight] = deque()
        self._undecided = False
        # All that is live waits for the disk.
        self._resting = False
        self._steps = 0
        self._retired = [0] * len(Finish)
        self._prompt_tokens = 0
        self._decode_rows = 0
        self._tokens = 0

    @property
    def budgets(self) -> PrefillBudgets:
        """Prompt tokens of a step."""
        return self._prompts.budgets

    @property
    def outstanding(self) -> Plan | None:
        """The plan whose verdict is awaited next."""
        return self._flights[0].plan if self._flights else None

    @property
    def has_work(self) -> bool:
        """Whether anything is left to do without news: then a tick with an empty record yields a
        plan, once no plan is out any more at the latest."""
        return bool(self._live or self._closing) and not self._resting

    @property
    def may_tick(self) -> bool:
        """Whether the next tick may come now: no plan is out, or one more is due ahead of the
        verdict. A plan that is due goes out before that verdict is applied."""
        return not self._flights or self._is_due_ahead()

    @property
    def idle(self) -> bool:
        """Nothing queued, nothing running."""
        return not self._live

    def tick(self, record: Record) -> Step:
        """`take` the record in and `decide` one step."""
        taken = self.take(record)
        step = self.decide()
        return Step(step.plan, taken.outcomes + step.outcomes)

    def take(self, record: Record) -> Taken:
        """The first half of a tick: cancels and stops in arrival order, then newcomers.

        Ids unknown to `cancels` and `stops` are ignored: their choice has ended already. Raises
        StepOrderError or SubmitContractError, either before anything has changed.
        """
        if self._undecided or not self.may_tick:
            awaited = self._flights[-1].plan.step if self._flights else self._steps
            raise StepOrderError(
                f"scheduler: tick {record.tick} while step {awaited} awaits its verdict"
            )
        if record.submits:
            self._intake.check(record.submits, self._live)
        outcomes: list[Outcome] = []
        self._resting = False
        self._memory.begin_tick()
        self._seating.begin_tick()
        self._take_cold(record, outcomes)
        if record.cancels or record.stops:
            self._sweep(record, outcomes)
        self._make_way(outcomes)
        accepted = self._take_in(record, outcomes) if record.submits else record
        self._undecided = True
        return Taken(accepted, outcomes)

    def decide(self) -> Step:
        """The second half, from the state alone: admission, prompts, decode. Raises StepOrderError
        where nothing was taken."""
        if not self._undecided:
            raise StepOrderError("scheduler: decide before a record was taken")
        self._undecided = False
        outcomes: list[Outcome] = []
        seated = self._seated()
        self._memory.keep_cuts(seated)
        opens = self._seating.admit(outcomes)
        # Who is seated now has read nothing yet.
        decoding = [choice for choice in seated if choice.has_row]
        self._memory.roll(decoding)
        decodes = tuple(choice.next_row() for choice in decoding)
        prefills = self._prompts.chunks(busy=bool(decodes))
        if not opens:
            self._memory.ease()
        self._memory.spill()
        plan = self._plan(Plan(self._steps, (), opens, prefills, decodes))
        self._resting = plan is None and not self._flights
        self._operations.fold()
        self._memory.fold()
        return Step(plan, outcomes)

    def _plan(self, plan: Plan) -> Plan | None:
        """`plan` with what gathered since the last one; None where there is nothing in it."""
        memory, tier = self._memory, self._memory.tier
        spills, restores = ((), ()) if tier is None else (tier.spills, tier.restores)
        plan = Plan(
            plan.step,
            tuple(self._closing),
            plan.opens,
            plan.prefills,
            plan.decodes,
            tuple(memory.keeps),
            tuple(memory.grows),
            tuple(self._sheds),
            tuple(spills),
            tuple(restores),
        )
        if plan == Plan(plan.step):
            return None
        for told in (self._closing, self._sheds, memory.keeps, memory.grows):
            told.clear()
        if tier is not None:
            tier.spills.clear()
            tier.restores.clear()
        self._flights.append(launched(plan, self._slots.holders))
        self._steps += 1
        self._decode_rows += len(plan.decodes)
        self._prompt_tokens += sum(chunk.count for chunk in plan.prefills)
        return plan

    def apply(self, verdict: Verdict) -> list[Outcome]:
        """Commit what the step decided; slots and blocks of finished choices are free at once.

        Raises StepOrderError or VerdictContractError, either before anything has changed.
        """
        plan = self.outstanding
        if plan is None or verdict.step != plan.step:
            awaited = "none" if plan is None else f"step {plan.step}"
            raise StepOrderError(
                f"scheduler: verdict of step {verdict.step} came, awaited: {awaited}"
            )
        if self._is_due_ahead():
            raise StepOrderError(
                f"scheduler: verdict of step {verdict.step} came before the plan that is due ahead "
                "of it"
            )
        self._flights[0].check(verdict)
        outcomes: list[Outcome] = []
        for choice, decided in self._flights.popleft().decided(verdict):
            self._commit(choice, decided, outcomes)
        self._operations.fold()
        self._memory.fold()
        return outcomes

    def _commit(self, choice: Choice, decided: SlotVerdict, outcomes: list[Outcome]) -> None:
        choice_id = choice.submit.id
        choice.ahead -= 1
        for token in decided.tokens:
            choice.produced += 1
            self._operations.token(choice_id, token, choice.produced)
            choice.last_token = token
        choice.answer.extend(decided.tokens)
        self._tokens += len(decided.tokens)
        if choice.phase is Phase.PREFILLING:
            choice.phase = Phase.ACTIVE
            outcomes.append(Began(choice_id, decided.slot))
        if not decided.fed:
            choice.turn()
            self._memory.unroll(choice)
        if decided.finish is not Finish.NONE:
            self._retire(choice, decided.finish, outcomes)

    def statistics(self) -> SchedulerStatistics:
        """Levels and totals as they stand."""
        phases = [choice.phase for choice in self._slots.holders if choice is not None]
        prefilling = phases.count(Phase.PREFILLING)
        pool, cache, tier = self._memory.pool, self._memory.cache, self._memory.tier
        return SchedulerStatistics(
            active=len(phases) - prefilling,
            prefilling=prefilling,
            queued=len(self._seating.waiting),
            slots=self.limits.slots,
            blocks_in_use=pool.in_use - pool.reclaimable,
            blocks=pool.total,
            steps=self._steps,
            submitted=self._intake.submitted,
            admitted=self._seating.admitted,
            refused=self._intake.refused,
            retired=tuple(self._retired),
            prompt_tokens=self._prompt_tokens,
            decode_rows=self._decode_rows,
            tokens=self._tokens,
            cached_tokens=self._seating.cached_tokens,
            reservations_grown=self._growth.reservations,
            shed=self._retired[Finish.POOL_EXHAUSTED],
            cache=None if cache is None else cache.statistics(),
            tier=None if tier is None else tier.statistics(),
        )

    def digest(self) -> int:
        """The fold of every operation so far; ranks that agree have equal digests."""
        return self._operations.digest()

    def prefix_digest(self) -> int:
        """The same of every decision of the prefix cache."""
        cache = self._memory.cache
        return 0 if cache is None else cache.decisions.digest()

    def offer(self, inventory: Inventory) -> None:
        """What this rank's disk held at the start; to come before the record that settles it."""
        if self._memory.tier is not None:
            self._memory.tier.offer(inventory)

    def check(self) -> None:
        """Raise a named error unless blocks in use are those of live choices and of the cache."""
        self._memory.check(self._seated())

    def _seated(self) -> list[Choice]:
        return [choice for choice in self._slots.holders if choice is not None]

    def _is_due_ahead(self) -> bool:
        """Whether the next plan goes out before the verdicts that are awaited."""
        if not 0 < len(self._flights) <= self.limits.depth:
            return False
        held = self._seated()
        # One choice whose next row needs the host's knowledge makes the whole step wait.
        if any(c.ahead and not c.runs_ahead for c in held):
            return False
        return (
            bool(self._closing or self._prompts.reading or self._memory.keeps)
            or any(c.has_row for c in held)
            or self._seating.has_next()
        )

    def _sweep(self, record: Record, outcomes: list[Outcome]) -> None:
        reasons = dict.fromkeys(record.stops, Finish.STOP)
        reasons.update(dict.fromkeys(record.cancels, Finish.CANCELLED))
        hit = [self._live[choice_id] for choice_id in reasons if choice_id in self._live]
        for choice in sorted(hit, key=lambda c: c.arrival):
            self._retire(choice, reasons[choice.submit.id], outcomes)

    def _take_cold(self, record: Record, outcomes: list[Outcome]) -> None:
        """What came of the disk tier's operations."""
        tier = self._memory.tier
        if tier is None or not record.cold:
            return
        answered = [tier.done(done) for done in record.cold]
        if any(answered):
            self._seating.wake()
        # Blocks that an operation held may be free now.
        self._seating.changed()
        outcomes.extend(Remark(text) for text in tier.notes)
        tier.notes.clear()

    def _make_way(self, outcomes: list[Outcome]) -> None:
        """Under `grow`, get the blocks of the next rows, by sheds where there are no others."""

        def give_way(choice: Choice) -> None:
            if choice.opened:
                self._retire(choice, Finish.POOL_EXHAUSTED, outcomes)
            else:
                self._unseat(choice)

        if not self._growth.grows:
            return
        for choice in self._seated():
            if choice.shed and not choice.ahead:
                give_way(choice)
        self._growth.extend(self._seated(), give_way)

    def _take_in(self, record: Record, outcomes: list[Outcome]) -> Record:
        """`record` without those who were refused."""
        accepted, gone = self._intake.take(record, idle=not self._live, outcomes=outcomes)
        for submit in gone:
            self._end(submit.id, Finish.CANCELLED, 0, outcomes)
        for choice in accepted:
            self._live[choice.submit.id] = choice
            self._seating.waiting.add(choice)
            self._seating.changed()
        if len(accepted) + len(gone) == len(record.submits):
            return record
        kept = {choice.submit.id for choice in accepted} | {submit.id for submit in gone}
        submits = tuple(submit for submit in record.submits if submit.id in kept)
        return replace(record, submits=submits)

    def _unseat(self, choice: Choice) -> None:
        """Back to its place in the queue: it has read nothing yet."""
        self._prompts.drop(choice)
        self._memory.leave(choice)
        self._slots.release(choice.slot)
        choice.slot, choice.blocks, choice.follows = -1, (), None
        choice.phase = Phase.QUEUED
        self._seating.waiting.restore(choice)

    def _retire(self, choice: Choice, reason: Finish, outcomes: list[Outcome]) -> None:
        del self._live[choice.submit.id]
        if choice.phase is Phase.QUEUED:
            self._seating.waiting.remove(choice)
        else:
            if not choice.is_read or choice.follows is not None:
                self._prompts.drop(choice)
            self._memory.leave(choice)
            choice.turn()
            self._slots.release(choice.slot)
            if choice.opened:
                self._closing.append(choice.slot)
                if reason is Finish.POOL_EXHAUSTED:
                    self._sheds.append(choice.slot)
            choice.slot, choice.lease = -1, None
        self._seating.changed()
        self._end(choice.submit.id, reason, choice.produced, outcomes)

    def _end(self, choice_id: str, reason: Finish, produced: int, outcomes: list[Outcome]) -> None:
        self._retired[reason] += 1
        self._operations.retire(choice_id, reason, produced)
        outcomes.append(Retired(choice_id, reason, produced))
