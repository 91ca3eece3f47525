"""How long the scheduler takes over a tick, with the prefix cache full.

    PYTHONPATH=. .venv/bin/python scripts/bench_scheduler.py [--seconds 20]

16 requests live and 64 queued throughout, on a pool of blocks that the cache fills. Prompts have
some two thousand tokens, of conversations that share a system prompt and come back or not, answers
64 to 447. Most ticks decode; every sixteenth or so a request ends, leaves its conversation to the
cache, and the next is admitted, which takes a lookup, evictions and a reservation. A tick is
`Scheduler.tick`, an apply `Scheduler.apply`; both stand between two steps of the engine.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque

from command_line import Options, ended

from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import CachePolicy
from dgpp.sched.plan import Plan
from dgpp.sched.request import Record, Submit, pack_ids
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict

LIVE, QUEUED = 16, 64
SYSTEM = 1024
LIMITS = EngineLimits(
    slots=LIVE,
    vocab_size=150_000,
    position_ceiling=131_072,
    block_tokens=64,
    blocks=4096,
    chunk_align=64,
    chunk_limit=2048,
    candidates=128,
    snapshots=4096,
)


class Load:
    """Conversations that take turns with pauses: some come back, some do not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.system = self._text(SYSTEM)
        self.talks: deque[list[int]] = deque()
        self.number = 0

    def _text(self, count: int) -> list[int]:
        return [self.rng.randrange(100, 150_000) for _ in range(count)]

    def next(self) -> Submit:
        if len(self.talks) > 300 or (self.talks and self.rng.random() < 0.6):
            index = self.rng.randrange(min(len(self.talks), 120))
            tokens = self.talks[index]
            del self.talks[index]
        else:
            tokens = list(self.system) if self.rng.random() < 0.8 else []
        tokens += self._text(self.rng.randrange(50, 1000))
        if len(tokens) < 4000:
            self.talks.append(tokens)
        self.number += 1
        most = self.rng.randrange(64, 448)
        return Submit(f"r{self.number}-0", pack_ids(tokens), most, stop_ids=(7,))


class Machine:
    """Answers plans with random tokens, as an engine and a sampler would."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}

    def answer(self, plan: Plan, rng: random.Random) -> Verdict:
        for slot in plan.closes:
            del self.left[slot]
        for opened in plan.opens:
            self.left[opened.slot] = opened.request.max_tokens
        decided = []
        for slot in plan.sampled_slots():
            self.left[slot] -= 1
            finish = Finish.NONE if self.left[slot] else Finish.LENGTH
            decided.append(SlotVerdict(slot, (rng.randrange(100, 150_000),), finish))
        return Verdict(plan.step, tuple(decided))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def show(name: str, values: list[float]) -> None:
    numbers = " ".join(
        f"{label} {1e6 * percentile(values, share):7.1f}"
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
    )
    print(f"{name:28s} {len(values):7d}  {numbers}  max {1e6 * max(values):8.1f} µs")


def main() -> None:
    parser = Options(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall time; needs an idle machine")
    given = parser.parse_args()
    # The thread's processor time: what others run beside it does not count.
    clock = time.perf_counter if given.wall else time.thread_time
    load, machine = Load(given.seed), Machine()
    scheduler = Scheduler(
        LIMITS, queue_limit=QUEUED + LIVE, cache_policy=CachePolicy(min_tokens=1024)
    )
    ticks: dict[str, list[float]] = {"decode only": [], "with an admission": [], "other": []}
    applies: list[float] = []
    tick = 0
    warm_until = None
    # What the loop allocates is freed by its last reference; the load's own lists are not timed.
    gc.disable()
    begun = time.perf_counter()
    while warm_until is None or time.perf_counter() - warm_until < given.seconds:
        stats = scheduler.statistics()
        missing = QUEUED + (LIVE - stats.active - stats.prefilling) - stats.queued
        record = Record(tick, tuple(load.next() for _ in range(max(0, missing))))
        start = clock()
        step = scheduler.tick(record)
        ended = clock()
        tick += 1
        plan = step.plan
        assert plan is not None
        kind = "with an admission" if plan.opens else "other"
        if plan.decodes and not (plan.opens or plan.prefills or record.submits):
            kind = "decode only"
        verdict = machine.answer(plan, load.rng)
        applying = clock()
        done = scheduler.apply(verdict)
        applied = clock()
        cache = stats.cache
        full = cache is not None and cache.counters.evictions > 200
        if full and warm_until is None:
            warm_until = time.perf_counter()
            print(f"cache full after {tick} ticks, {warm_until - begun:.1f} s")
        if full:
            ticks[kind].append(ended - start)
            applies.append(applied - applying)
        del done
    counters = scheduler.statistics().cache
    assert counters is not None
    everything = [value for values in ticks.values() for value in values]
    for name, values in ticks.items():
        if values:
            show(f"tick, {name}", values)
    show("tick, all", everything)
    show("apply", applies)
    c = counters.counters
    print(
        f"entries {counters.entries}, blocks cached {counters.blocks} of {LIMITS.blocks}, "
        f"hits {c.hits} of {c.hits + c.misses}, evictions {c.evictions}"
    )


if __name__ == "__main__":
    ended(main)
