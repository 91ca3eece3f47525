"""Ranks that hold parts of different models find out before the first step."""

from __future__ import annotations

import numpy as np
import pytest
from net_worlds import world_of

from dgpp.engine.agreement import require_one_model
from dgpp.errors import CheckpointError
from dgpp.models.account import Account


def account_of(rank: int, world: int, change=None) -> Account:
    """A model of one replicated norm and gate, and one matrix shared out by rows."""
    account = Account()
    norm, gate = np.arange(64, dtype=np.float32), np.arange(512, dtype=np.uint16)
    own = 1024 // world
    if change is not None:
        norm, gate, own = change(norm, gate, own)
    account.add("norm.weight", norm.nbytes, norm.nbytes, [norm])
    account.add("gate", gate.nbytes, gate.nbytes, [gate])
    account.add("up", 1024, own, None)
    return account


def outcome(world: int, guilty: int | None = None, change=None) -> list[str]:
    """What every rank says; '' for nothing."""

    def ask(rank) -> str:
        account = account_of(rank.rank, world, change if rank.rank == guilty else None)
        try:
            require_one_model(account, rank)
        except CheckpointError as error:
            return str(error)
        return ""

    with world_of(world) as made:
        return made.run(ask)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_one_model_is_agreed_upon(world: int) -> None:
    assert outcome(world) == [""] * world


def test_a_tensor_that_differs_is_named_on_every_rank() -> None:
    def change(norm, gate, own):
        other = gate.copy()
        other[77] ^= 1
        return norm, other, own

    said = outcome(3, 2, change)
    assert len(set(said)) == 1
    assert said[0].startswith("tensor gate is not the same on rank 2 and rank 0")


def test_bytes_that_do_not_add_up_are_named() -> None:
    said = outcome(2, 1, lambda norm, gate, own: (norm, gate, own - 12))
    # 64 values of 4 bytes and 512 of 2 on both ranks, 1,024 bytes once, less the twelve.
    told = (
        "ranks read 3572 bytes of weights (rank 0 1792, rank 1 1780), 3584 make one model of "
        "2304 with 1280 on every rank"
    )
    assert said == [told, told]


def test_another_number_of_tensors_is_named() -> None:
    def ask(rank) -> str:
        account = account_of(rank.rank, 2)
        if rank.rank:
            account.digests.pop("norm.weight")
        with pytest.raises(CheckpointError) as caught:
            require_one_model(account, rank)
        return str(caught.value)

    with world_of(2) as made:
        said = made.run(ask)
    assert said == ["rank 1 has 1 replicated tensors, rank 0 2: their checkpoints differ"] * 2
