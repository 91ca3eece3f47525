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


def test_sums_follow_one_another_however_many_slots_they_give_back():
    """The last messages of a sum are given back after this rank has sent all of its own: credits
    without a message behind them must not stand in the way of the next sum's."""
    width = 64
    for slots in (3, 8, 16):
        rows = 2 * slots

        def go(rank, rows=rows):
            part = Block(np.full((rows, width), rank.rank + 1, np.float32))
            out = Block(np.zeros((rows, width), np.float32))
            for _ in range(3):
                rank.all_reduce(rows, part, out)
            return out.array.tolist()

        with world_of(2, 1, Geometry(4, 64, slots, 4 * width)) as world:
            assert world.run(go) == [[[9.0] * width] * rows] * 2


def test_a_payload_that_never_has_its_hash_is_named():
    with world_of(2, 1) as world:
        first, second = world.ranks
        mark = Mark(second.generation + 1, tag(Kind.ALL_GATHER, Wire.F32, 8))
        bus.announce(first._ends.latency(1).record, 8, 12345, *mark)
        with pytest.raises(ProtocolError, match="rank 0: message 2 has come, but not with its"):
            second.all_gather(np.zeros(8, np.uint8))
