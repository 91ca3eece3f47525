"""What the scheduler's actor tells operators: log lines and the rank's counters."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from actors.context import Context
from actors.metrics import CACHE_COUNTERS, CACHE_LEVELS, TIER_COUNTERS, TIER_LEVELS
from actors.reading import ReadingBoard
from actors.statistics import Counter, StatisticsBlock
from dgpp.cache.statistics import CacheCounters
from dgpp.log import log_line
from dgpp.log_lines import Interval, Retirement, admitted_line, missed_line
from dgpp.sched.outcomes import Admitted, Began, Outcome, Refused, Remark, Retired
from dgpp.sched.plan import Plan
from dgpp.sched.request import Submit
from dgpp.sched.statistics import SchedulerStatistics
from dgpp.sched.verdict import Finish, Verdict

_log = logging.getLogger("dgpp.scheduler")


class Timeline(msgspec.Struct):
    """One choice's times in ns of the monotonic clock, 0 for what has not happened."""

    prompt_tokens: int
    max_tokens: int
    arrived: int
    admitted: int = 0
    began: int = 0
    cached_tokens: int = 0
    decode_steps_before: int = 0


class SchedulerReport:
    """Admission and retirement lines (where `requests`), the statistics line, the shared block."""

    def __init__(self, context: Context, interval_s: float, *, requests: bool = True) -> None:
        self._context = context
        self._requests = requests
        self._interval_s = interval_s
        self._block = context.statistics
        self._counters: dict[str, Counter] = {}
        self._timelines: dict[str, Timeline] = {}
        self._planned: deque[tuple[Plan, int]] = deque()
        self._stepped_ns = 0
        self._last_decode_ns = 0
        self._decode_steps = 0
        self._sums = _Sums()
        self._before = _Sums()
        self._latest: SchedulerStatistics | None = None
        self._said_idle = True
        self._said_ns = 0
        self._gauges = {
            name: self._block.gauge(name)
            for name in (
                *("active", "prefilling", "queued", "blocks_in_use", "reservations_grown"),
                *("levels_s", "step_began_s"),
            )
        }
        self._cache_levels = _Copied(self._block, "cache_", CACHE_LEVELS)
        self._cache_totals = _Copied(self._block, "cache_", CACHE_COUNTERS)
        self._tier_levels = _Copied(self._block, "tier_", TIER_LEVELS)
        self._tier_totals = _Copied(self._block, "tier_", TIER_COUNTERS)
        self._reading = ReadingBoard(self._block)
        self._cancelling = self._block.gauge("cancelling")
        self._seats: dict[str, int] = {}
        self._cache_said = CacheCounters()
        self._step_seconds = self._block.histogram("step_seconds")
        self._inter_token = self._block.histogram("inter_token_seconds")

    def begin(self) -> None:
        """Serving starts: say every interval how it goes."""
        self._said_ns = self._context.clock_ns()
        if self._interval_s > 0:
            self._context.call_later(self._interval_s, self._speak)

    def end(self, statistics: SchedulerStatistics) -> None:
        """Serving ends: the last interval, where there is something to say."""
        self._latest = statistics
        self._say()

    def arrived(self, submits: Iterable[Submit]) -> None:
        now = self._context.clock_ns()
        for submit in submits:
            self._timelines[submit.id] = Timeline(submit.prompt_tokens, submit.max_tokens, now)
            self._add("submitted")

    def ticked(self) -> None:
        self._add("ticks")

    def planned(self, plan: Plan) -> None:
        self._planned.append((plan, self._context.clock_ns()))
        self._show_step()

    def step(self, statistics: SchedulerStatistics, verdict: Verdict) -> None:
        """A step's verdict was applied."""
        plan, planned_ns = self._planned.popleft()
        now = self._context.clock_ns()
        # A step that was planned ahead began when the one before it ended.
        spent = now - max(planned_ns, self._stepped_ns)
        self._stepped_ns = now
        self._show_step()
        tokens = sum(len(decided.tokens) for decided in verdict.slots)
        self._add("steps")
        self._add("tokens", tokens)
        for chunk in plan.prefills:
            self._reading.read(chunk.slot, chunk.start + chunk.count, last=chunk.last)
        if plan.prefills:
            read = sum(chunk.count for chunk in plan.prefills)
            prompts = sum(chunk.last for chunk in plan.prefills)
            self._add("prefill_step_ns", spent)
            self._add("prompt_tokens", read)
            self._add("prompts", prompts)
            self._sums.prefill_ns += spent
            self._sums.prompt_tokens += read
            self._sums.prompts += prompts
        if plan.decodes:
            self._decoded(len(plan.decodes), spent, now)
            self._sums.decode_tokens += tokens - sum(c.last for c in plan.prefills)
        self.levels(statistics)

    def levels(self, statistics: SchedulerStatistics, arriving: int = 0) -> None:
        """Copy what stands now into the shared block; `arriving` wait for the next tick."""
        self._latest = statistics
        gauges = self._gauges
        gauges["levels_s"].set(self._context.clock())
        gauges["active"].set(statistics.active)
        gauges["prefilling"].set(statistics.prefilling)
        gauges["queued"].set(statistics.queued + arriving)
        gauges["blocks_in_use"].set(statistics.blocks_in_use)
        gauges["reservations_grown"].set(statistics.reservations_grown)
        if (cache := statistics.cache) is not None:
            self._cache_levels.copy(cache)
            self._cache_totals.copy(cache.counters)
        if (tier := statistics.tier) is not None:
            self._tier_levels.copy(tier)
            self._tier_totals.copy(tier.counters)

    def _show_step(self) -> None:
        """Since when the step that is out runs: what `/health` goes by."""
        began_ns = max(self._planned[0][1], self._stepped_ns) if self._planned else 0
        self._gauges["step_began_s"].set(began_ns / 1e9)

    def cancelling(self, count: int) -> None:
        """So many cancellations wait for the next tick."""
        self._cancelling.set(count)

    def outcome(self, outcome: Outcome) -> None:
        match outcome:
            case Admitted():
                self._admitted(outcome)
            case Began():
                line = self._timelines[outcome.id]
                line.began = self._context.clock_ns()
                line.decode_steps_before = self._decode_steps
            case Refused():
                self._timelines.pop(outcome.id, None)
                self._add("refused")
                self._sums.refused += 1
                if self._requests:
                    _log.info("%s refused (%s)", outcome.id, outcome.code)
            case Retired():
                self._retired(outcome)
            case Remark(text):
                _log.info("%s", text)

    def _decoded(self, rows: int, spent: int, now: int) -> None:
        self._decode_steps += 1
        self._add("decode_steps")
        self._add("decode_rows", rows)
        if self._last_decode_ns:
            self._inter_token.observe((now - self._last_decode_ns) / 1e9)
        self._last_decode_ns = now
        self._step_seconds.observe(spent / 1e9)
        self._add("decode_step_ns", spent)
        self._sums.decode_ns += spent
        self._sums.decode_steps += 1

    def _admitted(self, outcome: Admitted) -> None:
        now = self._context.clock_ns()
        line = self._timelines[outcome.id]
        line.admitted = now
        line.cached_tokens = outcome.cached_tokens
        waited = now - line.arrived
        self._seats[outcome.id] = outcome.slot
        self._reading.begin(
            outcome.slot, line.prompt_tokens, line.cached_tokens, self._context.clock()
        )
        self._add("admitted")
        self._add("cached_tokens", outcome.cached_tokens)
        self._sums.cached_tokens += outcome.cached_tokens
        self._block.histogram("queue_seconds").observe(waited / 1e9)
        if not self._requests:
            return
        said = admitted_line(
            outcome.id,
            slot=outcome.slot,
            prompt_tokens=line.prompt_tokens,
            max_tokens=line.max_tokens,
            cached_tokens=line.cached_tokens,
            decoded_tokens=outcome.decoded_tokens,
            queue_ms=waited / 1e6,
        )
        log_line(_log, said.text, said.fields)
        if outcome.missed:
            missed = missed_line(outcome.id, line.cached_tokens, outcome.missed)
            log_line(_log, missed.text, missed.fields)

    def _retired(self, outcome: Retired) -> None:
        line = self._timelines.pop(outcome.id)
        slot = self._seats.pop(outcome.id, None)
        if slot is not None and not line.began:
            self._reading.clear(slot)
        now = self._context.clock_ns()
        admitted, began = line.admitted or now, line.began or now
        self._add(f"finished_{outcome.reason.name.lower()}")
        self._sums.retired += 1
        self._sums.cancelled += outcome.reason is Finish.CANCELLED
        if line.began:
            self._add("prefill_request_ns", began - admitted)
            self._block.histogram("prefill_seconds").observe((began - admitted) / 1e9)
            self._block.histogram("decode_seconds").observe((now - began) / 1e9)
            self._block.histogram("request_prompt_tokens").observe(line.prompt_tokens)
            self._block.histogram("request_generation_tokens").observe(outcome.tokens)
        else:
            began = now
        if not self._requests:
            return
        said = Retirement(
            id=outcome.id,
            reason=outcome.reason.name.lower(),
            tokens=outcome.tokens,
            prompt_tokens=line.prompt_tokens,
            cached_tokens=line.cached_tokens,
            queue_ms=(admitted - line.arrived) / 1e6,
            prefill_ms=(began - admitted) / 1e6,
            decode_ms=(now - began) / 1e6,
            decode_steps=self._decode_steps - line.decode_steps_before if line.began else 0,
        ).line()
        log_line(_log, said.text, said.fields)

    def _add(self, name: str, amount: int = 1) -> None:
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self._block.counter(name)
        counter.add(amount)

    def _speak(self) -> None:
        self._say()
        self._context.call_later(self._interval_s, self._speak)

    def _say(self) -> None:
        """The statistics line; after a busy stretch one idle line, then silence."""
        statistics = self._latest
        if statistics is None or self._interval_s <= 0:
            return
        said, self._said_ns = self._said_ns, self._context.clock_ns()
        seconds = (self._said_ns - said) / 1e9
        now, before = self._sums, self._before
        self._before = msgspec.structs.replace(now)
        interval = Interval(
            rank=self._context.rank,
            seconds=seconds,
            decode_tokens=now.decode_tokens - before.decode_tokens,
            decode_steps=now.decode_steps - before.decode_steps,
            decode_s=(now.decode_ns - before.decode_ns) / 1e9,
            prefill_prompts=now.prompts - before.prompts,
            prefill_tokens=now.prompt_tokens - before.prompt_tokens,
            prefill_s=(now.prefill_ns - before.prefill_ns) / 1e9,
            cached_tokens=now.cached_tokens - before.cached_tokens,
            **self._cache_interval(statistics),
            live=statistics.active + statistics.prefilling,
            queued=statistics.queued,
            blocks_used=statistics.blocks_in_use,
            blocks_total=statistics.blocks,
            requests=now.retired - before.retired,
            shed=now.refused - before.refused,
            cancelled=now.cancelled - before.cancelled,
        )
        if not (interval.idle and self._said_idle):
            line = interval.line()
            log_line(_log, line.text, line.fields)
        self._said_idle = interval.idle

    def _cache_interval(self, statistics: SchedulerStatistics) -> dict[str, int]:
        cache = statistics.cache
        if cache is None:
            return {}
        before, self._cache_said = self._cache_said, msgspec.structs.replace(cache.counters)
        hits, misses = cache.counters.hits - before.hits, cache.counters.misses - before.misses
        return {
            "cache_hits": hits,
            "cache_lookups": hits + misses,
            "cache_entries": cache.entries,
            "cache_slots": cache.slots,
        }


class _Copied:
    """Gauges that show fields of one Struct, each under the field's name behind `prefix`."""

    __slots__ = ("_fields", "_gauges", "_seen")

    def __init__(self, block: StatisticsBlock, prefix: str, names: Sequence[str]) -> None:
        self._fields = attrgetter(*(name.removeprefix(prefix) for name in names))
        self._gauges = [block.gauge(name) for name in names]
        self._seen = (0,) * len(names)

    def copy(self, source: msgspec.Struct) -> None:
        """Show what `source` says now."""
        found = self._fields(source)
        if found != self._seen:
            self._seen = found
            for gauge, value in zip(self._gauges, found, strict=True):
                gauge.set(value)


class _Sums(msgspec.Struct):
    """Totals since the start, of which the statistics line shows the differences."""

    decode_tokens: int = 0
    decode_steps: int = 0
    decode_ns: int = 0
    prompts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_ns: int = 0
    retired: int = 0
    refused: int = 0
    cancelled: int = 0
