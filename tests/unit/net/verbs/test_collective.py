"""What only the bus does: ranks of several machines die alone."""

from __future__ import annotations

import numpy as np
import pytest
from fake_world import world_of

from dgpp.net.collective import Wire
from dgpp.net.errors import CollectiveError
from dgpp.net.tags import Kind, tag
from dgpp.net.verbs.errors import ProtocolError
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.slots import Mark
from kernels_numba.cpu import bus
from kernels_numba.cpu.memory import Block


def test_a_dead_rank_is_named_on_every_other():
    with world_of(4) as world:
        world.kill(2)
        errors = world.errors(lambda rank: rank.barrier() if rank.rank != 2 else None)
        for rank in (0, 1, 3):
            assert isinstance(errors[rank], CollectiveError)
            assert "rank 2" in str(errors[rank])


@pytest.mark.parametrize(("world_size", "total"), [(2, 9.0), (3, 18.0)])
def test_sums_follow_one_another_however_many_slots_they_give_back(world_size, total):
    """The last messages of a sum are given back after this rank has sent all of its own: credits
    without a message behind them must not stand in the way of the next sum's."""
    width = 64
    for slots in (3, 8, 16):
        rows = world_size * slots

        def go(rank, rows=rows):
            part = Block(np.full((rows, width), rank.rank + 1, np.float32))
            out = Block(np.zeros((rows, width), np.float32))
            for _ in range(3):
                rank.all_reduce(rows, part, out)
            return out.array.tolist()

        with world_of(world_size, 1, Geometry(4, 64, slots, 4 * width)) as world:
            assert world.run(go) == [[[total] * width] * rows] * world_size


@pytest.mark.parametrize(
    ("world_size", "wire", "widest"),
    [(2, Wire.F32, 16), (2, Wire.BF16, 32), (3, Wire.F32, 16), (3, Wire.BF16, 16)],
)
def test_a_large_sum_takes_rows_as_wide_as_they_travel(world_size, wire, widest):
    """Two ranks send their rows alone; of more, each sends sums too, which are float32."""

    def go(rank, width):
        part = Block(np.full((3, width), 1 << rank.rank, np.float32))
        out = Block(np.zeros((3, width), np.float32))
        rank.all_reduce(3, part, out)
        return out.array[:, :width].tolist()

    geometry = Geometry(4, 32, 4, 64)
    with world_of(world_size, 1, geometry, options={"wire": wire}) as world:
        total = float((1 << world_size) - 1)
        wanted = [[total] * widest] * 3
        assert world.run(lambda rank: go(rank, widest)) == [wanted] * world_size
        errors = world.errors(lambda rank: go(rank, widest + 1))
        size = {16: 4, 32: 2}[widest] * (widest + 1)
        for error in errors:
            assert f"a row of {size} bytes exceeds a bulk slot of 64" in str(error)


def test_a_payload_that_never_has_its_hash_is_named():
    with world_of(2, 1) as world:
        first, second = world.ranks
        mark = Mark(second.generation + 1, tag(Kind.ALL_GATHER, Wire.F32, 8))
        bus.announce(first._ends.latency(1).record, 8, 12345, *mark)
        with pytest.raises(ProtocolError, match="rank 0: message 2 has come, but not with its"):
            second.all_gather(np.zeros(8, np.uint8))
