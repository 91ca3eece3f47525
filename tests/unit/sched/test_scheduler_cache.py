"""The scheduler over a prefix cache: what is shared is right, whatever comes between."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_drive import Driver

from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import CachePolicy
from dgpp.sched.outcomes import Admitted, Refused, Retired
from dgpp.sched.request import Submit, pack_ids
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Finish

LIMITS = EngineLimits(
    slots=4,
    vocab_size=1000,
    position_ceiling=400,
    block_tokens=4,
    blocks=120,
    chunk_align=4,
    chunk_limit=64,
    candidates=8,
    snapshots=32,
)
POLICY = CachePolicy(min_tokens=0)


def text(seed: int, length: int) -> list[int]:
    return [100 + (seed * 211 + i * 37) % 800 for i in range(length)]


def said(request: Submit, produced: int) -> list[int]:
    """Each prompt has its own answer, so that conversations differ."""
    return [100 + (sum(request.prompt) + produced * 13) % 800]


def ask(choice_id: str, prompt: list[int], most: int = 6, **rest) -> Submit:
    return Submit(choice_id, pack_ids(prompt), most, stop_ids=(99,), **rest)


def driver(limits: EngineLimits = LIMITS, policy: CachePolicy = POLICY, **settings) -> Driver:
    return Driver(Scheduler(limits, cache_policy=policy, **settings), said, single=True)


def cached(d: Driver) -> dict[str, int]:
    return {o.id: o.cached_tokens for o in d.outcomes if isinstance(o, Admitted)}


def run(d: Driver, *submits: Submit) -> None:
    d.tick(*submits)
    d.run()
    d.scheduler.check()


def test_the_next_turn_reads_only_what_is_new():
    d = driver()
    first = text(1, 30)
    run(d, ask("a-0", first))
    answer = d.answers["a-0"]
    run(d, ask("b-0", [*first, *answer, *text(2, 9)]))
    # 36 tokens, the last of which was never fed: eight blocks of four.
    assert cached(d) == {"a-0": 0, "b-0": 32}
    assert d.scheduler.statistics().cached_tokens == 32
    assert d.scheduler.statistics().prompt_tokens == 30 + 45 - 32
    assert d.scheduler.statistics().blocks_in_use == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_choices_of_one_prompt_read_it_once(depth):
    d = driver(msgspec.structs.replace(LIMITS, depth=depth), prefill_budget_tokens=16)
    prompt = text(3, 62)
    run(d, *(ask(f"n-{k}", prompt) for k in range(4)))
    assert cached(d) == {"n-0": 0, "n-1": 60, "n-2": 60, "n-3": 60}
    assert d.scheduler.statistics().prompt_tokens == 62 + 3 * 2


def test_a_burst_with_one_beginning_reads_that_once():
    d = driver(prefill_budget_tokens=16)
    system = text(4, 70)
    run(d, *(ask(f"r{k}-0", [*system, *text(10 + k, 9)]) for k in range(3)))
    assert cached(d) == {"r0-0": 0, "r1-0": 68, "r2-0": 68}


def test_who_follows_reads_on_when_the_leader_is_cancelled():
    d = driver(prefill_budget_tokens=16)
    prompt = text(5, 90)
    d.tick(ask("a-0", prompt), ask("b-0", prompt))
    d.tick()
    d.tick(cancels=("a-0",))
    d.run()
    ends = {o.id: o.reason for o in d.outcomes if isinstance(o, Retired)}
    assert ends == {"a-0": Finish.CANCELLED, "b-0": Finish.LENGTH}
    # Two chunks of sixteen were read and kept.
    assert cached(d)["b-0"] == 32


def test_who_asks_again_after_a_cancel_need_not_wait_for_all_of_it():
    d = driver(prefill_budget_tokens=16)
    prompt = text(6, 90)
    d.tick(ask("a-0", prompt))
    d.tick()
    d.tick(cancels=("a-0",))
    run(d, ask("b-0", prompt))
    assert cached(d)["b-0"] == 32


def test_no_cache_neither_finds_nor_leaves_anything():
    d = driver()
    prompt = text(7, 40)
    run(d, ask("a-0", prompt, no_cache=True))
    run(d, ask("b-0", prompt))
    run(d, ask("c-0", prompt, no_cache=True))
    assert cached(d) == {"a-0": 0, "b-0": 0, "c-0": 0}


def test_a_full_cache_gives_way_to_live_requests_and_is_used_again():
    d = driver(msgspec.structs.replace(LIMITS, blocks=30))
    for number in range(12):
        run(d, ask(f"r{number}-0", text(20 + number, 60)))
    stats = d.scheduler.statistics()
    assert stats.cache is not None
    assert stats.cache.blocks <= 30
    assert stats.cache.counters.evictions > 0
    run(d, ask("again-0", text(31, 60)))
    assert cached(d)["again-0"] == 56


def test_shared_blocks_let_in_what_would_not_fit_alone():
    d = driver(msgspec.structs.replace(LIMITS, blocks=40, slots=4))
    prompt = text(8, 80)
    run(d, ask("warm-0", prompt))
    d.tick(*(ask(f"r{k}-0", prompt, 20) for k in range(3)))
    # 25 blocks each, 19 of which are shared: 25 + 6 + 6 of 40.
    assert d.scheduler.statistics().active == 3
    d.run()
    d.scheduler.check()


def test_without_close_entries_the_answer_is_read_again():
    d = driver(policy=CachePolicy(min_tokens=0, close=False))
    first = text(1, 30)
    run(d, ask("a-0", first, 20))
    run(d, ask("b-0", [*first, *d.answers["a-0"], *text(2, 9)]))
    assert cached(d)["b-0"] == 28


def test_a_miss_is_explained_and_rows_of_decode_are_told_apart():
    d = driver()
    run(d, ask("a-0", text(1, 30), 12))
    run(d, ask("b-0", [*text(1, 30), *d.answers["a-0"], *text(2, 20)]))
    run(d, ask("c-0", [*text(1, 11), *text(9, 30)]))
    a, b, c = (o for o in d.outcomes if isinstance(o, Admitted))
    assert a.missed == "the cache is empty"
    # 42 tokens, 41 fed: blocks to 40; those from 28 on have rows that decode wrote.
    assert (b.cached_tokens, b.decoded_tokens) == (40, 12)
    assert b.missed == "nothing is cached beyond its first 40 tokens"
    assert (c.cached_tokens, c.missed) == (8, "it differs from what is cached at token 11")


FIXED = msgspec.structs.replace(LIMITS, snapshot_bytes=100)


@pytest.mark.parametrize("depth", [0, 1])
def test_fixed_state_is_shared_through_snapshots(depth):
    d = driver(msgspec.structs.replace(FIXED, depth=depth), prefill_budget_tokens=16)
    first = text(1, 30)
    boundaries = pack_ids([10, 29])
    run(d, ask("a-0", first, 9, boundaries=boundaries))
    # The turn ends with 38 tokens fed; decode passed the cut at 36.
    run(d, ask("b-0", [*first, *d.answers["a-0"], *text(2, 9)]))
    # Another answer to the same question begins at the cut before the answer's mark.
    run(d, ask("c-0", first, 9, boundaries=boundaries))
    # Another question behind the same head.
    run(d, ask("d-0", [*first[:10], *text(3, 22)], 9))
    assert cached(d) == {"a-0": 0, "b-0": 36, "c-0": 28, "d-0": 8}
    counters = d.scheduler.statistics().cache.counters
    assert counters.rolling_snapshots > 0
    assert counters.head_snapshots == 1


SHAPES = st.tuples(
    st.sampled_from([(4, 4), (4, 8), (8, 4), (4, 16)]),  # align, block
    st.sampled_from([0, 100]),  # snapshot bytes
    st.integers(0, 1),  # depth
    st.integers(1, 12),  # snapshots
    st.integers(0, 1),  # lookahead
)
REQUEST = st.tuples(
    st.integers(0, 3),  # text it begins with
    st.integers(1, 70),  # how much of that
    st.integers(0, 5),  # text it goes on with
    st.integers(0, 40),  # how much of that
    st.integers(1, 24),  # max_tokens
    st.integers(1, 3),  # choices
    st.sampled_from([False, False, False, True]),  # no_cache
    st.sampled_from([0, 0, 5, -5]),  # priority
)
TICK = st.tuples(
    st.lists(REQUEST, max_size=2),
    st.lists(st.integers(0, 40), max_size=2),
    st.lists(st.integers(0, 40), max_size=1),
)


@settings(max_examples=100, deadline=None)
@given(
    SHAPES,
    st.integers(30, 80),
    st.lists(TICK, max_size=14),
    st.sampled_from(["full", "grow"]),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.booleans(),
)
def test_any_load_reads_its_own_tokens_and_ends_clean(shape, blocks, load, mode, picks, small):
    (align, block), size, depth, snapshots, lookahead = shape
    limits = msgspec.structs.replace(
        LIMITS,
        chunk_align=align,
        block_tokens=block,
        blocks=blocks * 4 // block,
        snapshot_bytes=size,
        depth=depth,
        snapshots=snapshots,
        lookahead=lookahead,
    )
    scheduler = Scheduler(
        limits,
        queue_limit=12,
        cache_policy=POLICY,
        admission=mode,
        admission_window=7,
        prefill_budget_tokens=16 if small else -1,
    )
    turns = iter(range(10**9))
    d = Driver(scheduler, said, lambda s, n: picks[next(turns) % len(picks)], single=True)
    ids: list[str] = []
    for number, (requests, cancels, stops) in enumerate(load):
        submits = []
        for which, (a, n, b, m, most, choices, no_cache, priority) in enumerate(requests):
            prompt = [*text(a, n), *text(b, m)]
            marks = pack_ids(sorted({n} & set(range(1, len(prompt)))))
            for k in range(choices):
                name = f"{number}.{which}-{k}"
                rest = {"boundaries": marks, "no_cache": no_cache, "priority": priority}
                submits.append(ask(name, prompt, most, **rest))
        ids += [s.id for s in submits]
        d.tick(
            *submits,
            cancels=tuple(ids[c] for c in cancels if c < len(ids)),
            stops=tuple(ids[c] for c in stops if c < len(ids)),
        )
        scheduler.check()
    for _ in range(len(ids) * 100):
        if not scheduler.has_work:
            break
        d.tick()
        scheduler.check()
    assert not scheduler.has_work
    stats = scheduler.statistics()
    assert (stats.blocks_in_use, stats.active, stats.prefilling, stats.queued) == (0, 0, 0, 0)
    ends = Counter(o.id for o in d.outcomes if isinstance(o, Retired | Refused))
    assert ends == Counter(ids)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.lists(TICK, max_size=10))
def test_all_ranks_decide_alike(shape, load):
    (align, block), size, depth, snapshots, lookahead = shape
    seen = []
    for _ in range(2):
        limits = msgspec.structs.replace(
            LIMITS,
            chunk_align=align,
            block_tokens=block,
            blocks=30,
            snapshot_bytes=size,
            depth=depth,
            snapshots=snapshots,
            lookahead=lookahead,
        )
        d = driver(limits, admission="grow", admission_window=9)
        for number, (requests, cancels, _) in enumerate(load):
            submits = [
                ask(f"{number}.{which}-0", [*text(a, n), *text(b, m)], most)
                for which, (a, n, b, m, most, *_) in enumerate(requests)
            ]
            d.tick(*submits, cancels=tuple(f"{c}.0-0" for c in cancels))
        d.run()
        seen.append((d.scheduler.digest(), d.scheduler.prefix_digest(), d.outcomes))
    assert seen[0] == seen[1]
