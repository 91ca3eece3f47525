"""The scheduler: a pure state machine from records and verdicts to plans, alike on every rank.

No clock, no randomness, no unordered iteration: what it decides follows from the records alone.
Nothing ever waits for something that waits for it. A choice holds its whole footprint from
admission on, so every live choice advances in every step that has room for it and ends within
its limit; and whenever nothing is live all blocks and slots are free, so the next in the queue,
which the door let in because it fits the empty pool, is admitted.

At depth D up to D + 1 plans are out. A plan made before the verdict of the one before it holds, for
each choice sampled there, the row at the position after it, whose token the engine feeds itself.
When a plan is due ahead of a verdict follows from the state alone, so records and verdicts
interleave alike on every rank. Slots and blocks of a choice that ends are free at once, also while
a row of it is out: the engine does everything in the order of the plans.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dgpp.engine.base import EngineLimits
from dgpp.errors import ConfigError
from dgpp.sched.admission import (
    CONTEXT_LENGTH_EXCEEDED,
    OVERLOADED,
    TOO_MANY_CHOICES,
    Door,
    blocks_needed,
    context_refusal,
    groups,
)
from dgpp.sched.blocks import BlockPool
from dgpp.sched.budgets import AUTO, resolve_budgets
from dgpp.sched.choice import Choice, Phase
from dgpp.sched.errors import StepOrderError, SubmitContractError
from dgpp.sched.flight import Flight, launched
from dgpp.sched.operations import OperationStream, Sink
from dgpp.sched.outcomes import Admitted, Began, Outcome, Refused, Retired
from dgpp.sched.plan import Open, Plan, PrefillChunk
from dgpp.sched.reading import share_units
from dgpp.sched.request import HIGHEST_PRIORITY, Record, Submit
from dgpp.sched.slots import SlotPool
from dgpp.sched.statistics import SchedulerStatistics
from dgpp.sched.verdict import Finish, Verdict
from dgpp.sched.waiting import WaitingQueue

OPENED_PROMPT_BYTES = 16 << 20
"""A plan that opens prompts of this much opens no more: plans are messages of a bounded size."""


class Step(NamedTuple):
    """What a tick decided: the plan (None where there is nothing to do) and what to tell whom."""

    plan: Plan | None
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
        admission: str = "full",
        operations_sink: Sink | None = None,
    ) -> None:
        if admission != "full":
            raise ConfigError(f'engine.admission = "{admission}" is not supported; use "full"')
        if limits.depth and limits.max_drafts:
            raise ConfigError(
                f"engine limits: depth {limits.depth} with max_drafts {limits.max_drafts}: how far "
                "a step of several tokens comes is not known ahead of its verdict"
            )
        self.limits = limits
        self.queue_limit = queue_limit
        self.budgets = resolve_budgets(limits, prefill_budget_tokens, prefill_idle_budget_tokens)
        self._operations = OperationStream(operations_sink)
        self._pool = BlockPool(limits.blocks)
        self._slots = SlotPool(limits.slots)
        self._waiting = WaitingQueue()
        self._live: dict[str, Choice] = {}
        self._reading: list[Choice] = []
        self._closing: list[int] = []
        self._flights: deque[Flight] = deque()
        # False while nothing has changed since an admission last found that nothing fits.
        self._may_admit = False
        self._turn = 0
        self._steps = 0
        self._submitted = 0
        self._admitted = 0
        self._refused = 0
        self._retired = [0] * len(Finish)
        self._prompt_tokens = 0
        self._decode_rows = 0
        self._tokens = 0

    @property
    def outstanding(self) -> Plan | None:
        """The plan whose verdict is awaited next."""
        return self._flights[0].plan if self._flights else None

    @property
    def has_work(self) -> bool:
        """Whether anything is left to do; a tick with an empty record then yields a plan once it
        may come."""
        return bool(self._live or self._closing)

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
        """Take in `record` and decide one step.

        Order: cancels and stops in arrival order, newcomers, admission, prompts, decode. Ids
        unknown to `cancels` and `stops` are ignored: their choice has ended already. Raises
        StepOrderError or SubmitContractError, either before anything has changed.
        """
        if not self.may_tick:
            raise StepOrderError(
                f"scheduler: tick {record.tick} while step {self._flights[-1].plan.step} awaits "
                "its verdict"
            )
        if record.submits:
            self._check_submits(record.submits)
        outcomes: list[Outcome] = []
        if record.cancels or record.stops:
            self._sweep(record, outcomes)
        if record.submits:
            self._take_in(record, outcomes)
        opens = self._admit(outcomes)
        decodes = tuple(c.next_row() for c in self._slots.holders if c is not None and c.has_row)
        prefills = self._read(busy=bool(decodes))
        closes = tuple(self._closing)
        self._closing.clear()
        plan = None
        if closes or opens or prefills or decodes:
            plan = Plan(self._steps, closes, opens, prefills, decodes)
            self._flights.append(launched(plan, self._slots.holders))
            self._steps += 1
            self._decode_rows += len(decodes)
        self._operations.fold()
        return Step(plan, outcomes)

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
            choice_id = choice.submit.id
            choice.ahead -= 1
            for token in decided.tokens:
                choice.produced += 1
                self._operations.token(choice_id, token, choice.produced)
                choice.last_token = token
            self._tokens += len(decided.tokens)
            if choice.phase is Phase.PREFILLING:
                choice.phase = Phase.ACTIVE
                outcomes.append(Began(choice_id, decided.slot))
            if not decided.fed:
                choice.turn()
            if decided.finish is not Finish.NONE:
                self._retire(choice, decided.finish, outcomes)
        self._operations.fold()
        return outcomes

    def statistics(self) -> SchedulerStatistics:
        """Levels and totals as they stand."""
        held = [c.phase for c in self._slots.holders if c is not None]
        prefilling = held.count(Phase.PREFILLING)
        return SchedulerStatistics(
            active=len(held) - prefilling,
            prefilling=prefilling,
            queued=len(self._waiting),
            slots=self.limits.slots,
            blocks_in_use=self._pool.in_use,
            blocks=self._pool.total,
            steps=self._steps,
            submitted=self._submitted,
            admitted=self._admitted,
            refused=self._refused,
            retired=tuple(self._retired),
            prompt_tokens=self._prompt_tokens,
            decode_rows=self._decode_rows,
            tokens=self._tokens,
        )

    def digest(self) -> int:
        """The fold of every operation so far; ranks that agree have equal digests."""
        return self._operations.digest()

    def check(self) -> None:
        """Raise a named error unless blocks in use are exactly those of the live choices."""
        self._pool.check()
        held = [b for c in self._slots.holders if c is not None for b in c.blocks]
        assert len(held) == len(set(held)) == self._pool.in_use

    def _check_submits(self, submits: tuple[Submit, ...]) -> None:
        seen: set[str] = set()
        for submit in submits:
            fault = None
            if submit.id in self._live or submit.id in seen:
                fault = "its id is live already"
            elif not submit.prompt or len(submit.prompt) % 4:
                fault = f"its prompt of {len(submit.prompt)} bytes is not one or more u32 ids"
            elif submit.max_tokens < 1:
                fault = f"max_tokens {submit.max_tokens} is below 1"
            elif abs(submit.priority) > HIGHEST_PRIORITY:
                fault = f"priority {submit.priority} is outside ±{HIGHEST_PRIORITY}"
            if fault is not None:
                raise SubmitContractError(f"scheduler: submit {submit.id!r}: {fault}")
            seen.add(submit.id)

    def _is_due_ahead(self) -> bool:
        """Whether the next plan goes out before the verdicts that are awaited."""
        if not 0 < len(self._flights) <= self.limits.depth:
            return False
        held = [c for c in self._slots.holders if c is not None]
        # One choice whose next row needs the host's knowledge makes the whole step wait.
        if any(c.ahead and not c.runs_ahead for c in held):
            return False
        return bool(self._closing or self._reading or any(c.has_row for c in held)) or (
            self._may_admit
            and self._slots.free > 0
            and self._waiting.pick(self._pool.free) is not None
        )

    def _sweep(self, record: Record, outcomes: list[Outcome]) -> None:
        reasons = dict.fromkeys(record.stops, Finish.STOP)
        reasons.update(dict.fromkeys(record.cancels, Finish.CANCELLED))
        hit = [self._live[choice_id] for choice_id in reasons if choice_id in self._live]
        for choice in sorted(hit, key=lambda c: c.arrival):
            self._retire(choice, reasons[choice.submit.id], outcomes)

    def _take_in(self, record: Record, outcomes: list[Outcome]) -> None:
        first = self._submitted
        self._submitted += len(record.submits)
        arrival = {s.id: first + index for index, s in enumerate(record.submits)}
        cancelled = set(record.cancels)
        door = self._door()
        accepted: list[Choice] = []
        # The order of admission, so that the door refuses those who would be served last.
        for group in sorted(groups(record.submits), key=lambda g: -g[0].priority):
            staying = [s for s in group if s.id not in cancelled]
            for submit in group:
                if submit.id in cancelled:
                    self._end(submit.id, Finish.CANCELLED, 0, outcomes)
            choices = [self._choice(s, arrival[s.id]) for s in staying]
            refusal = self._refusal(choices, door)
            if refusal is not None and refusal[0] == OVERLOADED and not (self._live or accepted):
                # The machine is all theirs and too small: no later time will be better.
                refusal = (TOO_MANY_CHOICES, self._too_many(choices))
            if refusal is None:
                accepted.extend(choices)
            else:
                self._refused += len(staying)
                outcomes.extend(Refused(s.id, *refusal) for s in staying)
        for choice in sorted(accepted, key=lambda c: c.arrival):
            self._live[choice.submit.id] = choice
            self._waiting.add(choice)
            self._may_admit = True

    def _door(self) -> Door:
        waiting = self._waiting
        stuck = waiting.pick(self._pool.free) is None
        openings = min(self._slots.free, waiting.patience) if stuck else 0
        return Door(self.queue_limit, len(waiting), openings, self._pool.free)

    def _too_many(self, choices: list[Choice]) -> str:
        at_once = min(self.limits.slots, self._pool.total // max(c.need for c in choices))
        return (
            f"{len(choices)} choices of this length are too many: {at_once} fit the cache at once "
            f"and {self.queue_limit} may wait"
        )

    def _choice(self, submit: Submit, arrival: int) -> Choice:
        tokens, limits = submit.prompt_tokens, self.limits
        # A greedy pick is always made; a sampled one may have to be fed again.
        runs_ahead = submit.runs_ahead and (limits.refeeds or submit.sampling.greedy)
        need = blocks_needed(limits, tokens, submit.max_tokens)
        return Choice(submit, arrival, tokens, need, runs_ahead)

    def _refusal(self, choices: list[Choice], door: Door) -> tuple[str, str] | None:
        for choice in choices:
            message = context_refusal(self.limits, choice.prompt_tokens, choice.submit.max_tokens)
            if message is not None:
                return CONTEXT_LENGTH_EXCEEDED, message
        return None if door.accepts(choices) else (OVERLOADED, door.refusal())

    def _admit(self, outcomes: list[Outcome]) -> tuple[Open, ...]:
        opens: list[Open] = []
        prompt_bytes = 0
        while self._may_admit and self._slots.free and prompt_bytes < OPENED_PROMPT_BYTES:
            choice = self._waiting.pick(self._pool.free)
            if choice is None:
                self._may_admit = False
                break
            self._waiting.admit(choice)
            choice.blocks = self._pool.reserve(choice.need)
            choice.slot = self._slots.take(choice)
            choice.phase = Phase.PREFILLING
            self._reading.append(choice)
            self._admitted += 1
            prompt_bytes += len(choice.submit.prompt)
            opens.append(Open(choice.slot, choice.submit, choice.blocks, 0, choice.arrival))
            outcomes.append(
                Admitted(choice.submit.id, choice.slot, choice.prompt_tokens, 0, choice.need)
            )
        return tuple(opens)

    def _read(self, *, busy: bool) -> tuple[PrefillChunk, ...]:
        reading = self._reading
        if not reading:
            return ()
        align = self.limits.chunk_align
        budget = self.budgets.busy if busy else self.budgets.idle
        needs = [-(-(c.prompt_tokens - c.read) // align) for c in reading]
        chunks: list[PrefillChunk] = []
        for choice, units in zip(
            reading, share_units(needs, budget // align, self._turn), strict=True
        ):
            if units:
                count = min(units * align, choice.prompt_tokens - choice.read)
                last = choice.read + count == choice.prompt_tokens
                chunks.append(PrefillChunk(choice.slot, choice.read, count, last))
                choice.read += count
                choice.ahead += last
                self._prompt_tokens += count
        self._reading = [c for c in reading if not c.is_read]
        self._turn += 1
        return tuple(chunks)

    def _retire(self, choice: Choice, reason: Finish, outcomes: list[Outcome]) -> None:
        del self._live[choice.submit.id]
        if choice.phase is Phase.QUEUED:
            self._waiting.remove(choice)
        else:
            if not choice.is_read:
                self._reading.remove(choice)
            choice.turn()
            self._pool.release(choice.blocks)
            self._slots.release(choice.slot)
            self._closing.append(choice.slot)
        self._may_admit = True
        self._end(choice.submit.id, reason, choice.produced, outcomes)

    def _end(self, choice_id: str, reason: Finish, produced: int, outcomes: list[Outcome]) -> None:
        self._retired[reason] += 1
        self._operations.retire(choice_id, reason, produced)
        outcomes.append(Retired(choice_id, reason, produced))
