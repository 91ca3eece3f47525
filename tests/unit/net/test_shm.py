"""Collectives over shared memory against NumPy, on ranks that are threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_worlds import SLOT, world_of
from sum_oracles import OUTSIDE, in_rank_order, padded_block, to_bf16

from dgpp.net.collective import Wire
from dgpp.net.errors import CollectiveError, CollectiveMismatchError
from kernels_numba.cpu.memory import Block

WORLDS = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def worlds():
    made = {}

    def get(world: int, wire: Wire = Wire.F32):
        if (world, wire) not in made:
            scope = world_of(world, wire=wire)
            made[world, wire] = (scope, scope.__enter__())
        return made[world, wire][1]

    yield get
    for scope, _ in made.values():
        scope.__exit__(None, None, None)


@settings(max_examples=60, deadline=None)
@given(
    world=st.sampled_from(WORLDS),
    wire=st.sampled_from(list(Wire)),
    rows=st.integers(1, 40),
    width=st.integers(1, 300),
    gap=st.integers(0, 9),
    add=st.booleans(),
    spread=st.sampled_from([1.0, 1e-30, 1e20]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_in_rank_order_and_alike_on_all_ranks(
    worlds, world, wire, rows, width, gap, add, spread, seed
) -> None:
    rng = np.random.default_rng(seed)
    parts = [(rng.standard_normal((rows, width)) * spread).astype(np.float32) for _ in range(world)]
    before = rng.standard_normal((rows, width)).astype(np.float32)

    def reduce(rank):
        partial, out = padded_block(parts[rank.rank], gap), padded_block(before, gap + 3)
        rank.all_reduce(rows, partial, out, add=add)
        assert (out.array[:, width:] == OUTSIDE).all()
        return out.array[:, :width].copy()

    results = worlds(world, wire).run(reduce)
    wanted = in_rank_order(parts, wire)
    wanted = (before + wanted).astype(np.float32) if add else wanted
    for result in results:
        np.testing.assert_array_equal(result, wanted)


def test_a_row_has_the_same_bits_alone_and_among_others(worlds) -> None:
    rng = np.random.default_rng(3)
    parts = rng.standard_normal((4, 33, 200)).astype(np.float32)
    world = worlds(4)

    def reduce(rank, rows):
        out = padded_block(np.zeros((len(rows), 200), np.float32), 0)
        rank.all_reduce(len(rows), padded_block(parts[rank.rank, rows], 1), out)
        return out.array.copy()

    together = world.run(lambda rank: reduce(rank, range(33)))[2]
    for row in (0, 19, 32):
        alone = world.run(lambda rank, row=row: reduce(rank, [row]))[1]
        np.testing.assert_array_equal(alone[0], together[row])


def test_not_a_number_stays_one_on_a_bf16_wire(worlds) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, -0.0, 3e38]], np.float32)
    values.view(np.uint32)[0, 0] = 0x7FFFFFFF

    def reduce(rank):
        out = padded_block(np.ones((1, 5), np.float32), 0)
        rank.all_reduce(1, padded_block(values, 0), out, add=False)
        return out.array.copy()

    (result,) = worlds(1, Wire.BF16).run(reduce)
    assert np.isnan(result[0, 0])
    np.testing.assert_array_equal(result[0, 1:3], values[0, 1:3])
    assert np.signbit(result[0, 3])
    assert result[0, 4] == to_bf16(values[0, 4:])[0]


@settings(max_examples=30, deadline=None)
@given(
    world=st.sampled_from(WORLDS),
    kind=st.sampled_from([np.int32, np.float64, np.uint8]),
    shape=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_gather_has_every_rank_s_array_in_order(worlds, world, kind, shape, seed) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 200, shape).astype(kind) for _ in range(world)]
    for result in worlds(world).run(lambda rank: rank.all_gather(parts[rank.rank])):
        assert result.dtype == kind
        np.testing.assert_array_equal(result, np.stack(parts))


def test_many_small_ones_in_any_mixture(worlds) -> None:
    """Ranks run ahead of one another as far as they can; no part is overwritten or read early."""
    plan = np.random.default_rng(5).integers(0, 3, 600)

    def go(rank):
        seen = []
        for step, kind in enumerate(plan):
            if kind == 0:
                out = Block(np.zeros((1, 7), np.float32))
                part = Block(np.full((1, 7), step + rank.rank, np.float32))
                rank.all_reduce(1, part, out)
                seen.append(float(out.array.sum()))
            elif kind == 1:
                seen.append(rank.all_gather(np.array([step * rank.rank])).ravel().tolist())
            else:
                rank.barrier()
        return seen

    for world in (2, 3):
        results = worlds(world).run(go)
        assert all(result == results[0] for result in results)
        ranks = range(world)
        wanted = [
            7.0 * sum(step + rank for rank in ranks) if kind == 0 else [step * r for r in ranks]
            for step, kind in enumerate(plan)
            if kind != 2
        ]
        assert results[0] == wanted


def test_statistics_count_what_was_done() -> None:
    with world_of(2) as world:
        world.run(lambda rank: rank.all_gather(np.zeros(SLOT // 4, np.int64)))
        told = world.ranks[1].statistics()
    assert (told.path, told.all_gathers, told.all_reduces, told.barriers) == ("shm", 2, 0, 1)
    assert told.bytes == 2 * SLOT
    assert len(told.late) == 2
    assert sum(told.late) <= told.waits


def errors_of(world, function) -> list[BaseException | None]:
    return [future.exception(60) for future in world.submit(function)]


def test_another_size_and_another_kind_are_named() -> None:
    with world_of(2) as world:
        errors = errors_of(world, lambda rank: rank.all_gather(np.zeros(8 + rank.rank, np.uint8)))
    for rank, error in enumerate(errors):
        assert isinstance(error, CollectiveMismatchError)
        other = f"an all-gather of {9 - rank} bytes on rank {1 - rank}"
        own = f"an all-gather of {8 + rank} bytes on rank {rank}"
        assert f"number 2 is {other} and {own}" in str(error)
    with world_of(2) as world:
        block = Block(np.zeros((1, 4), np.float32))
        errors = errors_of(
            world,
            lambda rank: rank.all_reduce(1, block, block) if rank.rank else rank.barrier(),
        )
        assert "number 2 is an all-reduce of 16 bytes on rank 1 and a barrier on rank 0" in str(
            errors[0]
        )
        with pytest.raises(CollectiveMismatchError):
            world.ranks[0].barrier()


def test_rows_that_fit_nowhere_are_named() -> None:
    with world_of(1) as world:
        (rank,) = world.ranks
        wide = Block(np.zeros((1, SLOT // 4 + 1), np.float32))
        with pytest.raises(CollectiveMismatchError, match=f"{SLOT + 4} bytes exceeds a slot"):
            rank.all_reduce(1, wide, wide)
        narrow = Block(np.zeros((1, 3), np.float32))
        with pytest.raises(CollectiveMismatchError, match=f"{SLOT // 4 + 1} values cannot be"):
            rank.all_reduce(1, wide, narrow)


def test_a_rank_that_left_uses_nothing_more() -> None:
    with world_of(1) as world:
        world.ranks[0].close()
        with pytest.raises(CollectiveError, match="rank 0 has left"):
            world.ranks[0].barrier()
