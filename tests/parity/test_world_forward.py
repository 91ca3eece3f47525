"""GLM-4.7 shared out to ranks computes what the reference does, alike on every rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dgpp.check.expected import Expected, stated_tolerances
from dgpp.check.forward import CheckOptions, check_checkpoint
from dgpp.check.world import run_world
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError, ConfigError

FIXTURES = Path(__file__).parents[1] / "fixtures"


def check(variant: str, **options):
    folder = FIXTURES / f"glm-4.7-{variant}"
    expected = Expected(folder / "expected.npz")
    tolerances = stated_tolerances(folder / "expected.npz")
    assert tolerances is not None
    chosen = CheckOptions(threads=1, **options)
    return check_checkpoint(Checkpoint(folder), expected, tolerances, chosen), expected


@pytest.mark.parametrize(
    ("variant", "world", "embed_sharding"),
    [
        ("bf16", 2, "replicated"),
        ("bf16", 4, "vocab"),
        ("nvfp4", 2, "vocab"),
        ("nvfp4", 4, "replicated"),
    ],
)
def test_fixtures_are_within_their_tolerance_in_a_world(variant, world, embed_sharding) -> None:
    report, expected = check(variant, world=world, embed_sharding=embed_sharding)
    assert report.failures == ()
    assert (report.world, report.backend) == (world, "cpu")
    # Every margin of the reference is beyond the tolerance, so that every token has to be equal.
    assert np.min(expected["greedy_margin"]) > 0.02
    assert report.greedy_equal == report.greedy_total == 24
    assert report.router_equal
    assert report.mtp_router_equal
    assert report.logits_max_abs < 1e-3


def test_layer_by_layer_in_a_world() -> None:
    report, _ = check("nvfp4", world=2, per_layer=True)
    assert report.failures == ()
    assert all(layer.ok for layer in report.layers)


def test_a_world_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 does not divide .* num_key_value_heads"):
        check("bf16", world=8)


def test_an_error_of_one_rank_is_the_world_s() -> None:
    def rank_of(rank, collective):
        if rank == 1:
            raise CheckpointError("rank 1 alone")
        collective.barrier()

    with pytest.raises(CheckpointError, match="rank 1 alone"):
        run_world(3, rank_of)
