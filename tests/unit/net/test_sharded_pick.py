"""A sharded pick is the pick of the whole row: same ids, same bits, on every rank."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net_worlds import world_of

from dgpp.engine.row_selection import RowSelector
from dgpp.engine.sharded_selection import ShardedSelector
from dgpp.models.shard import Shard
from dgpp.sample.candidates import SlotTables
from dgpp.sample.merge import merge_lse
from dgpp.sample.params import SamplingParams
from kernels_numba.cpu.picker import CpuPicker

SLOTS = 3


@pytest.fixture(scope="module", params=[2, 4])
def world(request):
    with world_of(request.param) as made:
        yield made


def tables_of(rng: np.random.Generator, vocab: int) -> SlotTables:
    words = -(-vocab // 32)
    mask = rng.integers(0, 2**32, (SLOTS, 1, words), np.uint32)
    mask[1] = 0
    mask[1, 0, 0] = 1 << 7
    return SlotTables(
        rng.integers(0, 3, (SLOTS, vocab)).astype(np.int32),
        rng.standard_normal((SLOTS, vocab)).astype(np.float32),
        mask,
        np.array([1, 1, 0], np.int32),
    )


CHOICES = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7),
    SamplingParams(
        temperature=1.3,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.1,
        logit_bias=((3, 1.0),),
    ),
]


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.integers(130, 900),
    wanted=st.sampled_from([1, 7, 128]),
    levels=st.sampled_from([2, 40, 10**6]),
    absent=st.sampled_from([0.0, 0.9]),
    slots=st.lists(st.sampled_from(range(SLOTS)), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_rank_has_the_candidates_of_the_whole_row(
    world, vocab, wanted, levels, absent, slots, seed
) -> None:
    """Few levels make ties, across slices too; absent ids make short lists."""
    rng = np.random.default_rng(seed)
    logits = (rng.integers(-levels, levels, (len(slots), vocab)) / levels * 9).astype(np.float32)
    logits[rng.random(logits.shape) < absent] = -np.inf
    tables = tables_of(rng, vocab)
    params = [CHOICES[int(rng.integers(len(CHOICES)))] for _ in slots]
    ranks = len(world.ranks)
    slices = [Shard(rank, ranks).vocabulary(vocab) for rank in range(ranks)]
    alone = RowSelector(CpuPicker(len(slots), vocab, wanted), range(vocab))
    expected = alone.select(logits, slots, params, tables)
    whole = alone.adjusted(logits, range(len(slots)))

    def select(rank):
        held = slices[rank.rank]
        own = np.ascontiguousarray(logits[:, held.start : held.stop])
        picker = CpuPicker(len(slots), len(held), min(wanted, len(slices[0])))
        selector = ShardedSelector(RowSelector(picker, held), rank, slices)
        return selector.select(own, slots, params, tables), selector.adjusted(own, [0])

    results = world.run(select)
    for found, full in results:
        kept = found.ids.shape[1]
        np.testing.assert_array_equal(found.ids, expected.ids[:, :kept])
        np.testing.assert_array_equal(
            found.logits.view(np.uint32), expected.logits[:, :kept].view(np.uint32)
        )
        np.testing.assert_array_equal(found.held, np.minimum(expected.held, kept))
        np.testing.assert_array_equal(found.present, expected.present)
        np.testing.assert_array_equal(found.lse, results[0][0].lse)
        np.testing.assert_allclose(found.lse, expected.lse, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(full[0].view(np.uint32), whole[0].view(np.uint32))


def test_zeros_of_both_signs_keep_theirs_and_tie() -> None:
    with world_of(2) as world:
        logits = np.full((1, 64), -5.0, np.float32)
        logits[0, [40, 9, 50]] = [0.0, -0.0, -0.0]
        slices = [range(32), range(32, 64)]

        def select(rank):
            own = np.ascontiguousarray(logits[:, slices[rank.rank]])
            selector = ShardedSelector(
                RowSelector(CpuPicker(1, 32, 4), slices[rank.rank]), rank, slices
            )
            tables = tables_of(np.random.default_rng(0), 64)
            found = selector.select(own, [2], [SamplingParams(temperature=0.0)], tables)
            return found.ids[0].tolist(), np.signbit(found.logits[0]).tolist()

        for ids, signs in world.run(select):
            assert ids == [9, 40, 50, 0]
            assert signs == [True, False, True, True]


def test_sums_of_slices_by_hand() -> None:
    inf, nan = math.inf, math.nan
    parts = np.array(
        [[0.0, -inf, 700.0, -inf, nan, 1.0], [math.log(3), 2.5, 700.0, -inf, 1.0, inf]]
    )
    merged = merge_lse(parts)
    np.testing.assert_allclose(merged[:3], [math.log(4), 2.5, 700 + math.log(2)], rtol=1e-15)
    assert merged[3] == -inf
    assert math.isnan(merged[4])
    assert merged[5] == inf
