"""The disk tier under the scheduler: what comes back is what was written, whenever it comes."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_drive import Driver
from test_scheduler_cache import LIMITS, REQUEST, ask, cached, run, said, text

from dgpp.cache.cold_ops import INVENTORY, ColdDone
from dgpp.sched.memory import CachePolicy
from dgpp.sched.outcomes import Refused, Remark, Retired
from dgpp.sched.request import pack_ids
from dgpp.sched.scheduler import Scheduler

COLD = msgspec.structs.replace(LIMITS, blocks=30, cold_pages=400, cold_blob_pages=2)
POLICY = CachePolicy(min_tokens=0, cold_min_tokens=8)


def driver(limits=COLD, **settings) -> Driver:
    scheduler = Scheduler(limits, cache_policy=POLICY, **settings)
    return Driver(scheduler, said, single=True)


def remarks(d: Driver) -> list[str]:
    return [o.text for o in d.outcomes if isinstance(o, Remark)]


def push_out(d: Driver) -> None:
    """Fill the memory with other prompts, so that nothing else is left there."""
    for number in range(4):
        run(d, ask(f"other{number}{d._ticks}-0", text(40 + number, 100), no_cache=False))


@pytest.mark.parametrize("snapshot_bytes", [0, 100])
def test_what_memory_lost_is_read_back(snapshot_bytes):
    d = driver(msgspec.structs.replace(COLD, snapshot_bytes=snapshot_bytes, snapshots=6))
    prompt = text(1, 62)
    marks = pack_ids([58])
    run(d, ask("a-0", prompt, boundaries=marks))
    push_out(d)
    run(d, ask("b-0", prompt, boundaries=marks))
    assert cached(d)["b-0"] == (60 if not snapshot_bytes else 56)
    counters = d.scheduler.statistics().tier.counters
    assert counters.restored == 1
    assert counters.tokens_restored == cached(d)["b-0"]
    assert counters.spilled >= 5


def test_turns_of_a_conversation_are_written_once():
    d = driver()
    tokens = text(1, 30)
    for turn in range(3):
        run(d, ask(f"t{turn}-0", tokens, 8))
        tokens = [*tokens, *d.answers[f"t{turn}-0"], *text(5 + turn, 10)]
    # 37, 55 and 73 tokens were fed: the pages are those of the longest.
    assert d.scheduler.statistics().tier.pages_used == 18
    assert d.scheduler.statistics().tier.counters.blocks_shared > 0


def test_what_could_not_be_read_is_computed_again_and_said():
    d = driver()
    prompt = text(1, 62)
    run(d, ask("a-0", prompt))
    push_out(d)
    entries = d.scheduler.statistics().tier.entries
    d.tick(ask("b-0", prompt))
    assert d.scheduler.statistics().queued == 1
    d.tick()
    assert not d.scheduler.has_work
    d.cold.append(d.disk.finish(ok=False))
    d.tick()
    d.run()
    assert cached(d)["b-0"] == 0
    assert remarks(d) == ["disk tier: 60 tokens could not be read back, they are computed again"]
    assert d.scheduler.statistics().tier.counters.restore_failed == 1
    # It was forgotten on disk, and written again when it was computed.
    assert d.scheduler.statistics().tier.entries == entries
    d.scheduler.check()


def test_what_could_not_be_written_is_not_found_there():
    d = driver()
    d.tick(ask("a-0", text(1, 62)))
    while d.scheduler.has_work:
        d.tick()
    d.cold.append(d.disk.finish(ok=False))
    d.tick()
    d.run()
    stats = d.scheduler.statistics().tier
    assert (stats.counters.spill_failed, stats.counters.spilled) == (1, 1)
    assert remarks(d) == ["disk tier: 60 tokens could not be written"]
    # The whole of it was written when the request had ended.
    assert (stats.entries, stats.pages_used) == (1, 16)
    push_out(d)
    run(d, ask("b-0", text(1, 62)))
    assert cached(d)["b-0"] == 60


def test_two_who_want_the_same_wait_for_one_reading():
    d = driver()
    prompt = text(1, 62)
    run(d, ask("a-0", prompt))
    push_out(d)
    d.tick(ask("b-0", prompt), ask("c-0", [*prompt[:61], 7, 8]))
    assert len(d.disk.waiting) == 1
    d.run()
    assert (cached(d)["b-0"], cached(d)["c-0"]) == (60, 60)
    assert d.scheduler.statistics().tier.counters.restores == 1


def test_others_are_served_while_one_waits_for_the_disk():
    d = driver()
    prompt = text(1, 62)
    run(d, ask("a-0", prompt))
    push_out(d)
    d.tick(ask("b-0", prompt))
    d.tick(ask("c-0", text(9, 20)))
    while d.scheduler.has_work:
        d.tick()
    ended = {o.id for o in d.outcomes if isinstance(o, Retired)}
    assert "c-0" in ended
    assert "b-0" not in ended
    d.run()
    d.scheduler.check()


def test_one_who_needs_the_room_of_what_was_read_back_gets_it():
    """It comes first and needs every block, when the other's prefix has just come back."""
    limits = msgspec.structs.replace(COLD, snapshot_bytes=100, snapshots=6)
    d = driver(limits)
    prompt = text(1, 62)
    marks = pack_ids([58])
    run(d, ask("a-0", prompt, boundaries=marks))
    push_out(d)
    d.tick(ask("b-0", prompt, boundaries=marks))
    assert len(d.disk.waiting) == 1
    whole = limits.blocks * limits.block_tokens - 2
    d.tick(ask("c-0", text(9, whole), 1, priority=7))
    assert d.scheduler.statistics().queued == 2
    d.run()
    assert d.admitted[-2:] == ["c-0", "b-0"]
    d.scheduler.check()


def test_who_waits_for_the_disk_can_be_cancelled():
    d = driver()
    prompt = text(1, 62)
    run(d, ask("a-0", prompt))
    push_out(d)
    d.tick(ask("b-0", prompt))
    d.tick(cancels=("b-0",))
    assert d.scheduler.idle
    d.run()
    d.scheduler.check()
    run(d, ask("c-0", prompt))
    assert cached(d)["c-0"] == 60


@pytest.mark.parametrize("snapshot_bytes", [0, 100])
def test_a_later_run_takes_over_what_the_disk_holds(snapshot_bytes):
    limits = msgspec.structs.replace(COLD, snapshot_bytes=snapshot_bytes, snapshots=6)
    first = driver(limits)
    prompts = [text(seed, 62) for seed in range(1, 5)]
    for number, prompt in enumerate(prompts):
        run(first, ask(f"a{number}-0", prompt))
    second = driver(limits)
    second.disk.pages, second.disk.blobs = first.disk.pages, first.disk.blobs
    second.scheduler.offer(first.disk.inventory())
    second.cold = [ColdDone(INVENTORY, ok=True)]
    second.tick()
    stats = second.scheduler.statistics().tier
    # A snapshot serves its own cut alone, so that each prompt has two.
    entries = 8 if snapshot_bytes else 4
    assert stats.entries == entries
    assert remarks(second) == [f"disk tier: {entries} entries of an earlier run taken over"]
    for number, prompt in enumerate(prompts):
        run(second, ask(f"b{number}-0", prompt))
        assert cached(second)[f"b{number}-0"] == 60
    second.scheduler.check()


def test_a_full_disk_forgets_what_was_used_least_lately():
    d = driver(msgspec.structs.replace(COLD, cold_pages=40))
    for number in range(6):
        run(d, ask(f"a{number}-0", text(number, 62)))
    stats = d.scheduler.statistics().tier
    assert stats.pages_used <= 40
    assert stats.counters.evictions >= 3


DISK = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.lists(REQUEST, max_size=2), st.lists(st.integers(0, 30), max_size=1)),
             max_size=12),
    DISK,
    st.sampled_from([0, 100]),
    st.integers(0, 1),
    st.integers(8, 60),
    st.integers(24, 50),
)  # fmt: skip
def test_any_load_over_any_disk_ends_clean(load, disk, size, depth, pages, blocks):
    limits = msgspec.structs.replace(
        COLD, snapshot_bytes=size, depth=depth, cold_pages=pages, blocks=blocks, snapshots=5
    )
    d = driver(limits, queue_limit=12, admission="grow", admission_window=9)
    scheduler = d.scheduler
    turns = iter(range(10**9))
    ids: list[str] = []

    def disk_answers() -> None:
        count, ok, late = disk[next(turns) % len(disk)]
        for _ in range(count if not late else 0):
            if (done := d.disk.finish(ok=ok)) is not None:
                d.cold.append(done)

    for number, (requests, cancels) in enumerate(load):
        submits = []
        for which, (a, n, b, m, most, choices, no_cache, priority) in enumerate(requests):
            prompt = [*text(a, n), *text(b, m)]
            marks = pack_ids(sorted({n} & set(range(1, len(prompt)))))
            rest = {"boundaries": marks, "no_cache": no_cache, "priority": priority}
            names = [f"{number}.{which}-{k}" for k in range(choices)]
            submits += [ask(name, prompt, most, **rest) for name in names]
            ids += names
        disk_answers()
        d.tick(*submits, cancels=tuple(ids[c] for c in cancels if c < len(ids)))
        scheduler.check()
    for _ in range(len(ids) * 100 + 100):
        if scheduler.has_work or scheduler.outstanding:
            d.tick()
        elif d.disk.waiting:
            _, ok, _ = disk[next(turns) % len(disk)]
            d.cold.append(d.disk.finish(ok=ok))
            d.tick()
        else:
            break
        scheduler.check()
    assert scheduler.idle
    stats = scheduler.statistics()
    assert (stats.blocks_in_use, stats.active, stats.prefilling, stats.queued) == (0, 0, 0, 0)
    ends = Counter(o.id for o in d.outcomes if isinstance(o, Retired | Refused))
    assert ends == Counter(ids)
