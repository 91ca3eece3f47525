"""What the engine applies to a row before its candidates are chosen."""

from __future__ import annotations

import numpy as np
import pytest

from dgpp.engine.row_selection import RowSelector
from dgpp.sample.candidates import SlotTables
from dgpp.sample.params import SamplingParams
from kernels_numba.cpu.picker import CpuPicker

VOCAB = 70


@pytest.fixture
def selector() -> RowSelector:
    return RowSelector(CpuPicker(4, VOCAB, 5), range(VOCAB))


@pytest.fixture
def tables() -> SlotTables:
    return SlotTables(
        np.zeros((3, VOCAB), np.int32),
        np.zeros((3, VOCAB), np.float32),
        np.zeros((3, 2, 3), np.uint32),
        np.zeros(3, np.int32),
    )


def logits() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((4, VOCAB)).astype(np.float32)


def test_plain_rows_are_left_alone(selector: RowSelector, tables: SlotTables) -> None:
    tables.counts[:] = 5
    tables.bias[:] = 9
    values = logits()
    picked = selector.select(values, [1, 0], [SamplingParams(temperature=0.0)] * 2, tables)
    for r in range(2):
        assert picked.ids[r].tolist() == np.argsort(-values[r])[:5].tolist()
    assert picked.present.tolist() == [VOCAB, VOCAB]
    assert picked.drafts.tolist() == [-1, -1]
    np.testing.assert_array_equal(selector.adjusted(values, [1]), values[1:2])
    np.testing.assert_array_equal(values, logits())


def test_penalties_bias_and_mask_apply_to_their_slot(
    selector: RowSelector, tables: SlotTables
) -> None:
    values = logits()
    tables.counts[2, 10] = 3
    tables.bias[2, 11] = 50
    tables.masked[2] = 1
    tables.mask[2, 0] = [1 << 10 | 1 << 11 | 1 << 31, 1, 0]
    params = SamplingParams(
        temperature=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=((11, 50.0),)
    )
    picked = selector.select(values, [0, 2], [SamplingParams(), params], tables)
    assert picked.present.tolist() == [VOCAB, 4]
    assert picked.held.tolist() == [5, 4]
    wanted = {
        10: values[1, 10] - np.float32(0.75) - np.float32(0.5),
        11: values[1, 11] + np.float32(50),
        31: values[1, 31],
        32: values[1, 32],
    }
    ranked = sorted(wanted, key=lambda token: (-wanted[token], token))
    assert picked.ids[1].tolist() == [*ranked, -1]
    got = dict(zip(picked.ids[1].tolist(), picked.logits[1].tolist(), strict=True))
    for token, value in wanted.items():
        assert got[token] == pytest.approx(value, rel=1e-6)
    scaled = np.array(list(wanted.values()), np.float64) / 2
    assert picked.lse[1] == pytest.approx(np.log(np.exp(scaled).sum()), rel=1e-6)
    full = selector.adjusted(values, [1])[0]
    assert np.flatnonzero(full > -np.inf).tolist() == [10, 11, 31, 32]


def test_draft_rows_use_the_mask_of_their_depth(selector: RowSelector, tables: SlotTables) -> None:
    tables.masked[1] = 1
    tables.mask[1, 0, 0], tables.mask[1, 1, 0] = 1 << 4, 1 << 9
    params = [SamplingParams()] * 3
    picked = selector.select(logits(), [1, 1, 0], params, tables)
    assert picked.ids[:2, 0].tolist() == [4, 9]
    assert picked.present.tolist() == [1, 1, VOCAB]
