"""What only the bus does: ranks of several machines die alone."""

from __future__ import annotations

from fake_world import world_of

from dgpp.net.errors import CollectiveError


def test_a_dead_rank_is_named_on_every_other():
    with world_of(4) as world:
        world.kill(2)
        errors = world.errors(lambda rank: rank.barrier() if rank.rank != 2 else None)
        for rank in (0, 1, 3):
            assert isinstance(errors[rank], CollectiveError)
            assert "rank 2" in str(errors[rank])
