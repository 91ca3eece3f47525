"""Any order of engines', pollers' and the network's steps: the right bits or a named error."""

from __future__ import annotations

import random

import numpy as np
from fake_verbs import Faults
from fake_world import World, world_of
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import SMALL
from sum_oracles import in_rank_order

from dgpp.net.collective import Wire
from dgpp.net.rows import Sum
from dgpp.net.verbs import sums
from dgpp.net.verbs.slab import State
from dgpp.net.verbs.slots import Ends, Mark
from dgpp.net.verbs.sums import Scratch

MOST_STEPS = 60_000
FIRST = 2**62
"""Collectives are numbered beyond what 32 bits hold."""

sum_of_rows = st.tuples(st.sampled_from(list(Wire)), st.integers(1, 24), st.integers(1, 16))
gather_of_bytes = st.integers(0, 700)
programs = st.lists(st.one_of(sum_of_rows, gather_of_bytes, st.none()), min_size=1, max_size=5)
faults = st.builds(
    Faults,
    lost=st.sampled_from([0, 9]),
    doubled=st.sampled_from([0, 3]),
    early=st.sampled_from([0, 2]),
    delayed=st.sampled_from([0, 3]),
)
shapes = st.sampled_from([(2, 1), (2, 2), (4, 2)])


class Engine:
    """One rank's engine: its program step by step, and what came of it."""

    def __init__(self, slab, parts) -> None:
        self.ends, self.scratch = Ends(slab), Scratch(slab.world)
        self.parts, self.results = parts, []
        self.steps = self._steps()
        self.ended = False

    def step(self) -> None:
        self.ended = self.ended or next(self.steps, None) is None

    def _steps(self):
        for number, (operation, part) in enumerate(self.parts):
            mark = Mark(FIRST + number, number)
            if operation is None:
                yield from sums.barrier(self.ends, mark)
            elif isinstance(operation, int):
                yield from self._gather(mark, part)
            else:
                yield from self._sum(mark, operation[0], part)

    def _gather(self, mark, part):
        out = np.zeros((self.ends.world, part.size), np.uint8)
        small = part.size <= SMALL.latency_slot_bytes
        gather = sums.gather_small if small else sums.gather_bulk
        step = sums.bytes_per_gather(self.ends)
        for first in range(0, max(part.size, 1), step):
            piece = slice(first, first + step)
            yield from gather(self.ends, mark, part[piece], out[:, piece])
        self.results.append(out)

    def _sum(self, mark, wire, part):
        out = np.ones_like(part)
        total = Sum(
            *part.shape, int(wire), int(part.ctypes.data), part.strides[0], int(out.ctypes.data),
            out.strides[0], True,
        )  # fmt: skip
        if total.bytes <= SMALL.latency_slot_bytes:
            yield from sums.one_shot(self.ends, mark, total, self.scratch)
        else:
            room = sums.rows_per_segment(self.ends, total.width, total.wire)
            for first in range(0, total.rows, room):
                piece = total.piece(first, min(room, total.rows - first))
                yield from sums.in_stripes(self.ends, mark, piece, self.scratch)
        self.results.append(out)


def arrays(program, world, rng):
    """For each operation what each rank contributes, and what each must get."""
    given, wanted = [], []
    for operation in program:
        if operation is None:
            given.append([None] * world)
        elif isinstance(operation, int):
            parts = [rng.integers(0, 256, operation, np.uint8) for _ in range(world)]
            given.append(parts)
            wanted.append(np.stack(parts))
        else:
            wire, rows, width = operation
            parts = [rng.standard_normal((rows, width)).astype(np.float32) for _ in range(world)]
            given.append(parts)
            wanted.append((1 + in_rank_order(parts, wire)).astype(np.float32))
    return given, wanted


def play(world, engines, choose, killed=-1, when=0):
    """Steps in any order until every engine has ended or its bus is broken; whether they did."""
    for step in range(MOST_STEPS):
        if step == when and killed >= 0:
            world.kill(killed)
        rank = choose.randrange(len(engines))
        if step % 500 == 0:
            world.tell()
        if choose.random() < 0.3:
            world.turn(rank)
        elif rank != killed or step < when:
            engines[rank].step()
        if all(
            engine.ended or rank == killed or world.pollers[rank].slab.state is State.FAILED
            for rank, engine in enumerate(engines)
        ):
            return True
    return False


def engines_of(world, program, seed):
    given, wanted = arrays(program, len(world.pollers), np.random.default_rng(seed))
    engines = [
        Engine(poller.slab, [(op, parts[rank]) for op, parts in zip(program, given, strict=True)])
        for rank, poller in enumerate(world.pollers)
    ]
    return engines, wanted


def require_right(engine, wanted):
    for result, right in zip(engine.results, wanted, strict=False):
        np.testing.assert_array_equal(result, right)


@settings(max_examples=25)
@given(program=programs, wrong=faults, shape=shapes, seed=st.integers(0, 2**32 - 1))
def test_every_order_gives_the_bits_of_one_host(program, wrong, shape, seed):
    with world_of(*shape, kind=World, faults=wrong, seed=seed) as world:
        engines, wanted = engines_of(world, program, seed)
        assert play(world, engines, random.Random(seed)), "nothing comes any more"
        for engine in engines:
            assert len(engine.results) == len(wanted)
            require_right(engine, wanted)


@settings(max_examples=15)
@given(
    program=programs,
    wrong=faults,
    shape=shapes,
    when=st.integers(0, 3000),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_rank_that_dies_at_any_step_is_named_and_no_sum_is_wrong(
    program, wrong, shape, when, seed
):
    killed = shape[0] - 1
    with world_of(*shape, kind=World, faults=wrong, seed=seed) as world:
        engines, wanted = engines_of(world, program, seed)
        assert play(world, engines, random.Random(seed), killed, when), "nobody is named"
        for rank in range(killed):
            require_right(engines[rank], wanted)
            slab = world.pollers[rank].slab
            if slab.state is State.FAILED:
                culprit, text, _status = slab.failure
                assert culprit == killed
                assert f"rank {killed}, lane" in text
            else:
                assert len(engines[rank].results) == len(wanted)
