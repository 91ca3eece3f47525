"""Hits fall smoothly as conversations outnumber what fits; and newcomers still find a place."""

from __future__ import annotations

import pytest
from cache_drive import share_hit

from dgpp.cache.entry import Entry, Kind, Node
from dgpp.cache.judge import Judge
from dgpp.cache.retention import Retention
from dgpp.cache.shape import CacheShape

SNAPSHOTS = 43


@pytest.mark.parametrize("conversations", [8, 16, 24, 40])
def test_conversations_that_fit_are_all_hit(conversations):
    # One entry each, and two more while a turn is served.
    shape = CacheShape(
        align=16, block_tokens=16, chunk=512, snapshots=SNAPSHOTS, paged_only=False, min_tokens=0
    )
    assert share_hit(shape, 2000, conversations) == 1.0


@pytest.mark.parametrize("conversations", [48, 96, 256])
def test_of_those_that_do_not_fit_the_settled_ones_are_hit(conversations):
    shape = CacheShape(
        align=16, block_tokens=16, chunk=512, snapshots=SNAPSHOTS, paged_only=False, min_tokens=0
    )
    # Seven eighths of 43 entries keep their place. By recency alone none would be hit.
    assert share_hit(shape, 8000, conversations) >= 36 / conversations


@pytest.mark.parametrize("conversations", [24, 32, 48, 96])
def test_blocks_fall_as_smoothly(conversations):
    shape = CacheShape(align=16, block_tokens=16, chunk=512, snapshots=4096, min_tokens=0)
    # A conversation ends with 3 turns of 2 · 64 tokens and a mark each: 25 blocks of 16.
    fit = 24
    least = 1.0 if conversations <= fit else 7 / 8 * fit / conversations
    assert share_hit(shape, 26 * fit, conversations) >= least


def entry(number: int, weight: int = 1) -> Entry:
    return Entry(number, Node(None, b"", ()), 1, Kind.TAIL, number, weight)


def anyone(_: Entry) -> bool:
    return True


def evict(retention: Retention) -> int:
    victim = retention.pick(anyone)
    assert victim is not None
    retention.remove(victim)
    return victim.number


def test_what_a_longer_entry_replaced_goes_first_and_comes_back_when_that_goes():
    retention = Retention()
    old, new, other = entry(0), entry(1), entry(2)
    for each in (old, new, other):
        retention.add(each, 1)
    retention.replace(old, new)
    assert retention.pick(anyone) is old
    retention.remove(new)
    assert old.newer is None
    assert retention.pick(anyone) is old
    assert evict(retention) == 0
    assert evict(retention) == 2
    assert retention.pick(anyone) is None


def full(keeping: bool) -> Retention:
    retention = Retention(keeping=keeping)
    for number in range(16):
        retention.add(entry(number), 1)
    return retention


def test_by_recency_the_oldest_goes():
    retention = full(keeping=False)
    gone = []
    for number in range(16, 40):
        gone.append(evict(retention))
        retention.add(entry(number), 1)
    assert gone == list(range(24))


def test_newcomers_pass_by_those_who_settled():
    retention = full(keeping=True)
    gone = []
    for number in range(16, 40):
        gone.append(evict(retention))
        retention.add(entry(number), 1)
    # Fourteen of sixteen settle; the others and the newcomers pass through two places.
    assert gone == [14, 15, *range(16, 38)]


def test_a_newcomer_that_is_hit_more_often_takes_a_settled_place():
    retention = full(keeping=True)
    evict(retention)
    newcomer = entry(16)
    retention.add(newcomer, 1)
    retention.touch(newcomer)
    assert not retention.settled(newcomer)
    retention.touch(newcomer)
    assert retention.settled(newcomer)
    # The place was that of the one unused for longest, which goes next.
    assert evict(retention) == 0


def test_a_settled_entry_that_stays_away_much_longer_than_others_goes():
    retention = full(keeping=True)
    evict(retention)
    # Somebody was away for 13; half as much again is waited for.
    retention.returned(retention.flow - 13)
    for number in range(16, 19):
        retention.add(entry(number), 1)
        assert evict(retention) not in range(14)
    retention.add(entry(19), 1)
    retention.flow += 1
    assert evict(retention) == 0


def test_when_all_are_due_the_one_that_had_its_turn_goes():
    retention = Retention(keeping=True)
    kept = [entry(number) for number in range(16)]
    for each in kept:
        retention.add(each, 1)
    evict(retention)
    retention.returned(retention.flow - 100)
    retention.touch(kept[3])
    # Nobody came in: the segments are as they were, and the settled ones give way.
    assert evict(retention) == 3
    assert evict(retention) == 13


def test_a_conversation_keeps_its_standing_as_it_grows():
    retention = Retention(keeping=True)
    first = entry(0)
    retention.add(first, 1)
    for number in range(1, 16):
        retention.add(entry(number), 1)
    assert evict(retention) == 14
    hits, settled = retention.standing(first)
    assert settled
    longer = entry(20)
    retention.add(longer, 1, hits + 1, settled=settled)
    retention.replace(first, longer)
    assert retention.standing(longer) == (1, True)


def test_without_many_more_than_fit_the_order_is_by_recency():
    judge = Judge()
    # Ten conversations in turn in room for sixteen, each a little longer every time.
    for turn in range(6):
        for line in range(10):
            if turn:
                judge.returns(line, 0, 16)
            judge.put(line, 1, 16)
    assert not judge.keeping


def test_more_than_fit_in_turn_are_kept_and_a_change_of_company_ends_that():
    judge = Judge()
    for turn in range(4):
        for line in range(24):
            if turn:
                judge.returns(line, 0, 16)
            judge.put(line, 1, 16)
    assert judge.keeping
    # From now on each comes back at once, and after three times never more.
    for line in range(100, 400):
        judge.put(line, 1, 16)
        for ago in (1, 2, 3):
            judge.returns(line - ago, 0, 16)
            judge.put(line - ago, 1, 16)
    assert not judge.keeping


def test_what_is_replaced_twice_counts_again_when_the_last_is_gone():
    retention = Retention()
    old, first, second = entry(0), entry(1), entry(2)
    for one in (old, first, second):
        retention.add(one, 1)
    retention.replace(old, first)
    retention.replace(old, second)
    retention.remove(first)
    assert old.newer is second
    retention.remove(second)
    assert old.newer is None
    assert evict(retention) == 0
