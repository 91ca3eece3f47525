"""Collectives over the bus: the bits of ranks of one host, over any network that delivers."""

from __future__ import annotations

import numpy as np
import pytest
from fake_verbs import Faults
from fake_world import world_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_oracles import OUTSIDE, in_rank_order, padded_block

from dgpp.net.collective import Wire
from dgpp.net.errors import CollectiveError, CollectiveMismatchError
from kernels_numba.cpu.memory import Block

SHAPES = [(2, 1), (2, 2), (4, 2)]
"""World and lanes."""
HARD = Faults(lost=9, doubled=5, early=3, delayed=3)


@pytest.fixture(scope="module")
def worlds():
    made = {}

    def get(shape, wire=Wire.F32, faults=Faults()):  # noqa: B008
        if (shape, wire, faults) not in made:
            scope = world_of(*shape, faults=faults, options={"wire": wire})
            made[shape, wire, faults] = (scope, scope.__enter__())
        # Pollers of the others would look for work all the while.
        for key, (_, world) in made.items():
            if key == (shape, wire, faults):
                world.wanted.set()
            else:
                world.wanted.clear()
        return made[shape, wire, faults][1]

    yield get
    for scope, _ in made.values():
        scope.__exit__(None, None, None)


@settings(max_examples=40)
@given(
    shape=st.sampled_from(SHAPES),
    wire=st.sampled_from(list(Wire)),
    faults=st.sampled_from([Faults(), HARD]),
    rows=st.integers(1, 40),
    width=st.integers(1, 64),
    gap=st.integers(0, 9),
    add=st.booleans(),
    spread=st.sampled_from([1.0, 1e-30, 1e20]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_of_all_sizes_have_the_bits_of_one_host(
    worlds, shape, wire, faults, rows, width, gap, add, spread, seed
):
    rng = np.random.default_rng(seed)
    parts = [
        (rng.standard_normal((rows, width)) * spread).astype(np.float32) for _ in range(shape[0])
    ]
    before = rng.standard_normal((rows, width)).astype(np.float32)

    def reduce(rank):
        partial, out = padded_block(parts[rank.rank], gap), padded_block(before, gap + 3)
        rank.all_reduce(rows, partial, out, add=add)
        assert (out.array[:, width:] == OUTSIDE).all()
        return out.array[:, :width].copy()

    results = worlds(shape, wire, faults).run(reduce)
    wanted = in_rank_order(parts, wire)
    wanted = (before + wanted).astype(np.float32) if add else wanted
    for result in results:
        np.testing.assert_array_equal(result, wanted)


@settings(max_examples=20)
@given(
    shape=st.sampled_from(SHAPES),
    faults=st.sampled_from([Faults(), HARD]),
    kind=st.sampled_from([np.int32, np.float64, np.uint8]),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=2),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_gather_has_every_rank_s_array_in_order(worlds, shape, faults, kind, sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 200, sizes).astype(kind) for _ in range(shape[0])]
    for result in worlds(shape, Wire.F32, faults).run(lambda r: r.all_gather(parts[r.rank])):
        assert result.dtype == kind
        np.testing.assert_array_equal(result, np.stack(parts))


def test_many_of_all_kinds_one_behind_the_other(worlds):
    """Ranks run ahead of one another as far as they can; no slot is filled or read early."""
    plan = np.random.default_rng(5).integers(0, 4, 40)

    def go(rank):
        seen = []
        for step, kind in enumerate(plan):
            if kind < 2:
                rows = 1 + 30 * int(kind)
                out = Block(np.zeros((rows, 7), np.float32))
                rank.all_reduce(rows, Block(np.full((rows, 7), step + rank.rank, np.float32)), out)
                seen.append(float(out.array.sum()))
            elif kind == 2:
                seen.append(rank.all_gather(np.array([step * rank.rank])).ravel().tolist())
            else:
                rank.barrier()
        return seen

    for shape in SHAPES:
        results = worlds(shape).run(go)
        ranks = range(shape[0])
        wanted = [
            7.0 * (1 + 30 * kind) * sum(step + rank for rank in ranks)
            if kind < 2
            else [step * rank for rank in ranks]
            for step, kind in enumerate(plan.tolist())
            if kind != 3
        ]
        assert results == [wanted] * shape[0]


def test_another_size_and_another_kind_are_named_on_both_sides():
    with world_of(2) as world:
        errors = world.errors(lambda rank: rank.all_gather(np.zeros(8 + rank.rank, np.uint8)))
    for rank, error in enumerate(errors):
        assert isinstance(error, CollectiveMismatchError)
        other = f"an all-gather of {9 - rank} bytes on rank {1 - rank}"
        own = f"an all-gather of {8 + rank} bytes on rank {rank}"
        assert f"number 2 is {other} and {own}" in str(error)


@pytest.mark.parametrize("rows", [1, 30], ids=["small", "striped"])
def test_a_sum_and_a_barrier_are_told_apart_whatever_pool_they_use(rows):
    with world_of(2) as world:
        block = Block(np.zeros((rows, 4), np.float32))
        errors = world.errors(
            lambda rank: rank.all_reduce(rows, block, block) if rank.rank else rank.barrier()
        )
        size = 16 * rows
        assert all(isinstance(error, CollectiveMismatchError) for error in errors), errors
        assert f"an all-reduce of {size} bytes on rank 1 and a barrier on rank 0" in str(errors[0])
        assert f"a barrier on rank 0 and an all-reduce of {size} bytes" in str(errors[1])
        with pytest.raises(CollectiveMismatchError):
            world.ranks[0].barrier()


def test_a_dead_rank_is_named_on_every_other():
    with world_of(4) as world:
        world.kill(2)
        errors = world.errors(lambda rank: rank.barrier() if rank.rank != 2 else None)
        for rank in (0, 1, 3):
            assert isinstance(errors[rank], CollectiveError)
            assert "rank 2" in str(errors[rank])


def test_rows_that_fit_nowhere_are_named():
    with world_of(2) as world:
        wide = Block(np.zeros((1, 65), np.float32))
        with pytest.raises(CollectiveMismatchError, match="260 bytes exceeds a bulk slot of 256"):
            world.ranks[0].all_reduce(1, wide, wide)
        narrow = Block(np.zeros((1, 3), np.float32))
        with pytest.raises(CollectiveMismatchError, match="65 values cannot be"):
            world.ranks[0].all_reduce(1, wide, narrow)


def test_statistics_count_what_was_done():
    with world_of(2) as world:
        world.run(lambda rank: rank.all_gather(np.zeros(8, np.int64)))
        told = world.ranks[1].statistics()
    assert (told.path, told.all_gathers, told.all_reduces, told.barriers) == ("verbs", 1, 0, 1)
    assert told.bytes == 64
    assert sum(told.late) <= told.waits


def test_who_has_left_uses_nothing_more_and_is_named():
    with world_of(2) as world:
        world.ranks[0].close()
        with pytest.raises(CollectiveError, match="rank 0 has left"):
            world.ranks[0].barrier()
        with pytest.raises(CollectiveError, match=r"rank 0 .*has left before a barrier"):
            world.ranks[1].barrier()
