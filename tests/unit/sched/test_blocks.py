import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.sched.blocks import BlockOwnershipError, BlockPool, BlocksExhaustedError


def test_last_freed_is_first_reserved_in_the_same_order():
    pool = BlockPool(8)
    assert pool.reserve(3) == (0, 1, 2)
    b = pool.reserve(2)
    assert b == (3, 4)
    pool.release(b)
    assert pool.reserve(2) == (3, 4)
    assert pool.reserve(0) == ()
    assert pool.in_use == 5


def test_a_reservation_that_does_not_fit_takes_nothing():
    pool = BlockPool(4)
    pool.reserve(3)
    with pytest.raises(BlocksExhaustedError, match="2 blocks asked for, 1 of 4 free"):
        pool.reserve(2)
    assert pool.free == 1
    pool.check()


def test_a_block_lives_until_its_last_owner_lets_go():
    pool = BlockPool(2)
    blocks = pool.reserve(1)
    pool.retain(blocks)
    pool.release(blocks)
    assert pool.in_use == 1
    assert pool.references(0) == 1
    pool.release(blocks)
    assert pool.in_use == 0


@pytest.mark.parametrize("blocks", [(1,), (0, 0), (-1,), (7,)])
def test_a_release_of_what_nobody_holds_changes_nothing(blocks):
    pool = BlockPool(3)
    pool.reserve(1)
    with pytest.raises(BlockOwnershipError):
        pool.release(blocks)
    assert pool.in_use == 1
    pool.check()


def test_retaining_a_free_block_is_refused():
    with pytest.raises(BlockOwnershipError, match="block 1 is held by nobody"):
        BlockPool(2).retain((1,))


def test_what_only_the_cache_holds_is_reclaimable():
    pool = BlockPool(3)
    blocks = pool.reserve(2)
    pool.cache(blocks)
    assert (pool.cached, pool.reclaimable, pool.free) == (2, 0, 1)
    pool.release(blocks)
    assert (pool.cached, pool.reclaimable, pool.free) == (2, 2, 1)
    pool.retain(blocks[:1])
    assert pool.reclaimable == 1
    pool.uncache(blocks)
    assert (pool.cached, pool.reclaimable, pool.free) == (0, 0, 2)
    pool.check()


def test_the_cache_owns_a_block_once_and_nobody_else_gives_it_away():
    pool = BlockPool(2)
    blocks = pool.reserve(1)
    with pytest.raises(BlockOwnershipError, match="block 0 is not cached"):
        pool.uncache(blocks)
    pool.cache(blocks)
    with pytest.raises(BlockOwnershipError, match="block 0 is cached already"):
        pool.cache(blocks)
    pool.release(blocks)
    with pytest.raises(BlockOwnershipError, match="only the cache holds block 0"):
        pool.release(blocks)
    pool.check()


OPERATIONS = st.sampled_from(["reserve", "retain", "release", "cache", "uncache"])


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 9))))
def test_books_balance_after_any_sequence(operations):
    pool = BlockPool(12)
    owned: list[tuple[int, ...]] = []
    cached: list[int] = []
    for operation, number in operations:
        if operation == "reserve":
            if number <= pool.free:
                owned.append(pool.reserve(number))
        elif operation == "uncache":
            if cached:
                pool.uncache((cached.pop(number % len(cached)),))
        elif owned and operation == "cache":
            fresh = [b for b in owned[number % len(owned)] if b not in cached]
            pool.cache(fresh)
            cached += fresh
        elif owned and operation == "retain":
            blocks = owned[number % len(owned)]
            pool.retain(blocks)
            owned.append(blocks)
        elif owned:
            pool.release(owned.pop(number % len(owned)))
        pool.check()
        live = {b for blocks in owned for b in blocks}
        assert pool.in_use == len(live | set(cached))
        assert pool.cached == len(cached)
        assert pool.reclaimable == len(set(cached) - live)
    for blocks in owned:
        pool.release(blocks)
    assert pool.free + pool.reclaimable == 12
