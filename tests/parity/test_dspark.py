"""Blocks drafted at once depend on what was read, not on how, where or beside whom; and cost the
target nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from reference_fixtures import model_of
from test_exactness import LIMITS, VOCAB, Driver

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import DummyModel, ModelEngine
from dgpp.models.forms import ModelForms
from dgpp.models.layers.dspark import DraftedBlock
from dgpp.sched.plan import DecodeRow, Plan, PrefillChunk

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(
    scope="module",
    params=[
        "deepseek-v4-flash-tiny",
        pytest.param("deepseek-v4.1-flash-tiny", marks=pytest.mark.long),
    ],
)
def checkpoint(request) -> Checkpoint | DummyModel:
    return model_of(request.param)


@pytest.fixture(scope="module")
def engine(checkpoint: Checkpoint | DummyModel) -> ModelEngine:
    return ModelEngine(checkpoint, LIMITS, 2, drafts=True)


def draft(engine: ModelEngine, slot: int, position: int, token: int) -> DraftedBlock:
    return engine.model.draft_block(engine.rows, slot, position, token, engine.read_logits)


def same(got: DraftedBlock, wanted: DraftedBlock) -> None:
    np.testing.assert_array_equal(got.tokens, wanted.tokens)
    np.testing.assert_array_equal(got.logits, wanted.logits)
    np.testing.assert_array_equal(got.confidence, wanted.confidence)


def test_a_block_is_the_same_however_its_context_was_read(engine: ModelEngine) -> None:
    rng = np.random.default_rng(11)
    prompt, other = rng.integers(0, VOCAB, 70), rng.integers(0, VOCAB, 41)
    driver = Driver(engine, 1)
    driver.read(3, prompt, len(prompt))
    wanted = draft(engine, 3, len(prompt), 9)
    assert len(set(wanted.tokens.tolist())) > 1
    driver.read(7, prompt, 16)
    same(draft(engine, 7, len(prompt), 9), wanted)
    # Beside another request, the last rows by decode steps.
    driver.read(2, prompt[:-3], 23)
    engine.forward(Plan(0, closes=(5,), opens=(driver.open(5, other),)))
    for step, token in enumerate(prompt[-3:].tolist()):
        row = DecodeRow(2, len(prompt) - 3 + step, token)
        chunk = PrefillChunk(5, 13 * step, 13, last=False)
        engine.forward(Plan(1, prefills=(chunk,), decodes=(row,)))
    same(draft(engine, 2, len(prompt), 9), wanted)


def test_a_block_leaves_the_target_as_it_was(engine: ModelEngine) -> None:
    prompt = np.random.default_rng(12).integers(0, VOCAB, 50)
    driver = Driver(engine, 2)
    driver.read(0, prompt, 32)
    first = draft(engine, 0, len(prompt), 4)
    same(draft(engine, 0, len(prompt), 4), first)
    got = driver.step(decodes=(DecodeRow(0, len(prompt), 4),))
    driver.read(1, prompt, 32)
    wanted = driver.step(decodes=(DecodeRow(1, len(prompt), 4),))
    np.testing.assert_array_equal(got, wanted)


def test_drafts_may_be_limited_to_some_tokens(
    engine: ModelEngine, checkpoint: Checkpoint | DummyModel, tmp_path: Path
) -> None:
    prompt = np.random.default_rng(13).integers(0, VOCAB, 40)
    Driver(engine, 3).read(0, prompt, 64)
    free = draft(engine, 0, len(prompt), 4)
    ids = np.arange(1, VOCAB, 3)
    np.save(tmp_path / "ids.npy", ids.astype(np.int32))
    forms = ModelForms(draft_vocab=str(tmp_path / "ids.npy"))
    limited = ModelEngine(checkpoint, LIMITS, 2, drafts=True, forms=forms)
    Driver(limited, 3).read(0, prompt, 64)
    held = draft(limited, 0, len(prompt), 4)
    assert set(held.tokens.tolist()) <= set(ids.tolist())
    # The first row follows the same token in both.
    np.testing.assert_array_equal(held.logits[0, ids], free.logits[0, ids])
    assert np.isneginf(np.delete(held.logits, ids, axis=1)).all()
