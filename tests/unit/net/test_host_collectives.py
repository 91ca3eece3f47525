"""What ranks are promised whatever carries their values, shared memory or the RoCE bus over a
network that need only deliver: NumPy's bits, and errors by name. Ranks are threads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import net_worlds
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_oracles import OUTSIDE, in_rank_order, padded_block

from dgpp.net.collective import Wire
from dgpp.net.errors import CollectiveError, CollectiveMismatchError
from kernels_numba.cpu.memory import Block

sys.path.append(str(Path(__file__).with_name("verbs")))
import fake_world
from fake_verbs import Faults

HARD = Faults(lost=9, doubled=5, early=3, delayed=3)


class Over(NamedTuple):
    """A world by what carries for it; the bus has lanes, and a network with faults."""

    path: str
    world: int
    lanes: int = 1
    faults: Faults = Faults()

    def open(self, wire: Wire = Wire.F32):
        if self.path == "shm":
            return net_worlds.world_of(self.world, wire=wire)
        return fake_world.world_of(
            self.world, self.lanes, faults=self.faults, options={"wire": wire}
        )

    @property
    def widest(self) -> int:
        """float32 values of a row: what a slot holds."""
        return net_worlds.SLOT // 4 if self.path == "shm" else 64


SHM = [Over("shm", world) for world in (1, 2, 3, 4)]
BUS = [
    Over("verbs", world, lanes, faults)
    for world, lanes in ((2, 1), (2, 2), (4, 2))
    for faults in (Faults(), HARD)
]
ANY = st.sampled_from([*SHM, *BUS])
both = pytest.mark.parametrize("over", [Over("shm", 2), Over("verbs", 2, 2)], ids=["shm", "verbs"])


@pytest.fixture(scope="module")
def worlds():
    made = {}

    def get(over: Over, wire: Wire = Wire.F32):
        if (over, wire) not in made:
            scope = over.open(wire)
            made[over, wire] = (scope, scope.__enter__())
        # Pollers of the others would look for work all the while.
        for key, (_, world) in made.items():
            if key[0].path == "verbs":
                (world.wanted.set if key == (over, wire) else world.wanted.clear)()
        return made[over, wire][1]

    yield get
    for scope, _ in made.values():
        scope.__exit__(None, None, None)


@settings(max_examples=100)
@given(
    over=ANY,
    wire=st.sampled_from(list(Wire)),
    rows=st.integers(1, 40),
    width=st.integers(1, 300),
    gap=st.integers(0, 9),
    add=st.booleans(),
    spread=st.sampled_from([1.0, 1e-30, 1e20]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_are_in_rank_order_and_alike_on_all_ranks(
    worlds, over, wire, rows, width, gap, add, spread, seed
):
    width = min(width, over.widest)
    rng = np.random.default_rng(seed)
    parts = [
        (rng.standard_normal((rows, width)) * spread).astype(np.float32) for _ in range(over.world)
    ]
    before = rng.standard_normal((rows, width)).astype(np.float32)

    def reduce(rank):
        partial, out = padded_block(parts[rank.rank], gap), padded_block(before, gap + 3)
        rank.all_reduce(rows, partial, out, add=add)
        assert (out.array[:, width:] == OUTSIDE).all()
        return out.array[:, :width].copy()

    results = worlds(over, wire).run(reduce)
    wanted = in_rank_order(parts, wire)
    wanted = (before + wanted).astype(np.float32) if add else wanted
    for result in results:
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("over", [SHM[-1], BUS[-2]], ids=["shm", "verbs"])
def test_a_row_has_the_same_bits_alone_and_among_others(worlds, over):
    width = min(200, over.widest)
    parts = np.random.default_rng(3).standard_normal((4, 33, width)).astype(np.float32)
    world = worlds(over)

    def reduce(rank, rows):
        out = padded_block(np.zeros((len(rows), width), np.float32), 0)
        rank.all_reduce(len(rows), padded_block(parts[rank.rank, rows], 1), out)
        return out.array.copy()

    together = world.run(lambda rank: reduce(rank, range(33)))[2]
    for row in (0, 19, 32):
        alone = world.run(lambda rank, row=row: reduce(rank, [row]))[1]
        np.testing.assert_array_equal(alone[0], together[row])


@settings(max_examples=50)
@given(
    over=ANY,
    kind=st.sampled_from([np.int32, np.float64, np.uint8]),
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_gather_has_every_rank_s_array_in_order(worlds, over, kind, shape, seed):
    shape = shape if over.path == "shm" else shape[:2]
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 200, shape).astype(kind) for _ in range(over.world)]
    for result in worlds(over).run(lambda rank: rank.all_gather(parts[rank.rank])):
        assert result.dtype == kind
        np.testing.assert_array_equal(result, np.stack(parts))


@pytest.mark.parametrize(
    ("over", "steps"),
    [(over, 600) for over in SHM[1:3]] + [(over, 40) for over in BUS if over.faults == Faults()],
)
def test_many_of_all_kinds_one_behind_the_other(worlds, over, steps):
    """Ranks run ahead of one another as far as they can; no part is overwritten or read early."""
    plan = np.random.default_rng(5).integers(0, 4, steps).tolist()

    def go(rank):
        seen = []
        for step, kind in enumerate(plan):
            if kind < 2:
                rows = 1 + 30 * kind
                out = Block(np.zeros((rows, 7), np.float32))
                rank.all_reduce(rows, Block(np.full((rows, 7), step + rank.rank, np.float32)), out)
                seen.append(float(out.array.sum()))
            elif kind == 2:
                seen.append(rank.all_gather(np.array([step * rank.rank])).ravel().tolist())
            else:
                rank.barrier()
        return seen

    ranks = range(over.world)
    wanted = [
        7.0 * (1 + 30 * kind) * sum(step + rank for rank in ranks)
        if kind < 2
        else [step * rank for rank in ranks]
        for step, kind in enumerate(plan)
        if kind != 3
    ]
    assert worlds(over).run(go) == [wanted] * over.world


@both
def test_another_size_is_named_on_both_sides(over):
    with over.open() as world:
        errors = world.errors(lambda rank: rank.all_gather(np.zeros(8 + rank.rank, np.uint8)))
    for rank, error in enumerate(errors):
        assert isinstance(error, CollectiveMismatchError)
        other = f"an all-gather of {9 - rank} bytes on rank {1 - rank}"
        own = f"an all-gather of {8 + rank} bytes on rank {rank}"
        assert f"number 2 is {other} and {own}" in str(error)


@both
@pytest.mark.parametrize("rows", [1, 30])
def test_another_kind_is_named_on_both_sides_and_ends_the_world(over, rows):
    """On the bus 30 rows go in stripes, over the other pool."""
    with over.open() as world:
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


@both
def test_rows_that_fit_nowhere_are_named(worlds, over):
    rank, widest = worlds(over).ranks[0], over.widest
    slot = "slot" if over.path == "shm" else "bulk slot"
    wide = Block(np.zeros((1, widest + 1), np.float32))
    said = f"a row of {4 * widest + 4} bytes exceeds a {slot} of {4 * widest}"
    with pytest.raises(CollectiveMismatchError, match=said):
        rank.all_reduce(1, wide, wide)
    narrow = Block(np.zeros((1, 3), np.float32))
    with pytest.raises(CollectiveMismatchError, match=f"{widest + 1} values cannot be summed"):
        rank.all_reduce(1, wide, narrow)


@pytest.mark.parametrize(
    ("over", "values", "gathers"),
    [(Over("shm", 2), net_worlds.SLOT // 4, 2), (Over("verbs", 2, 2), 8, 1)],
    ids=["shm", "verbs"],
)
def test_statistics_count_what_was_done(over, values, gathers):
    with over.open() as world:
        world.run(lambda rank: rank.all_gather(np.zeros(values, np.int64)))
        told = world.ranks[1].statistics()
    counts = (told.path, told.all_gathers, told.all_reduces, told.barriers)
    assert counts == (over.path, gathers, 0, 1)
    assert told.bytes == 8 * values
    assert len(told.late) == 2
    assert sum(told.late) <= told.waits


@both
def test_who_has_left_uses_nothing_more_and_is_named(over):
    with over.open() as world:
        world.ranks[0].close()
        with pytest.raises(CollectiveError, match="rank 0 has left"):
            world.ranks[0].barrier()
        with pytest.raises(CollectiveError, match=r"rank 0 .*has left before a barrier"):
            world.ranks[1].barrier()
