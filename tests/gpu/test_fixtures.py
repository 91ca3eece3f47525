"""GLM-4.7 fixtures on the GPU: layer by layer on the reference's own input, then end to end.

bf16 activations may choose another expert than float32 does. A row whose choice differs is judged
by the reference's gap between the last expert chosen and the first left out, not by its values.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dgpp.check.expected import Expected
from dgpp.check.forward import CHUNK, SLOTS
from dgpp.check.trace import SLOT, Taps, Trace
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.sched.plan import Plan

msgspec = pytest.importorskip("msgspec")
FIXTURES = Path(__file__).parents[1] / "fixtures"
INDEX = {entry["path"]: entry for entry in json.loads((FIXTURES / "index.json").read_text())}
LAYER_NOISE = 0.01
"""Largest error of a layer's update, relative to the largest update: a few bf16 steps (2^-9)."""
ROUTER_NOISE = 0.02
"""Difference of router scores that bf16 activations may decide either way."""


@pytest.fixture(scope="module", params=["glm-4.7-bf16", "glm-4.7-nvfp4"])
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(name: str) -> Expected:
    return Expected(FIXTURES / name / "expected.npz")


@pytest.fixture(scope="module")
def engine(name: str, expected: Expected, cuda: None) -> ModelEngine:
    checkpoint = Checkpoint(FIXTURES / name)
    tokens = len(expected["ids"]) + len(expected["greedy"])
    blocks = 2 * -(-tokens // CHUNK)
    settings = MemorySettings(slots=SLOTS, kv_capacity=blocks * CHUNK)
    limits = msgspec.structs.replace(
        plan_memory(checkpoint.config, settings).limits,
        block_tokens=CHUNK,
        blocks=blocks,
        chunk_align=CHUNK,
        chunk_limit=CHUNK,
    )
    return ModelEngine(checkpoint, limits, 1, drafts=True, backend="cuda")


@pytest.fixture(scope="module")
def trace(engine: ModelEngine, expected: Expected) -> Trace:
    trace = Trace(engine, expected["ids"], len(expected["greedy"]))
    trace.run()
    return trace


def layers_alone(engine: ModelEngine, trace: Trace, inputs: np.ndarray):
    """Each layer's output and choices on inputs [L + 1, T, H]."""
    rows, step, total = engine.rows, engine.limits.chunk_limit, inputs.shape[1]
    engine.forward(Plan(0, closes=(SLOT,), opens=(trace.open_slot(),)))
    taps, outputs = Taps(engine), []
    for layer in range(inputs.shape[0] - 1):
        parts = []
        for start in range(0, total, step):
            rows.count = min(step, total - start)
            rows.positions[: rows.count] = np.arange(start, start + rows.count)
            rows.slots[: rows.count] = SLOT
            engine.backend.begin(rows)
            chunk = inputs[layer, start : start + rows.count].astype(np.float32)
            engine.backend.write(engine.model.work.x, chunk)
            engine.model.forward_layer(layer, rows, taps)
            parts.append(engine.backend.read(engine.model.work.x, rows.count))
        outputs.append(np.concatenate(parts))
    return outputs, taps


def flipped(taps: Taps, expected: Expected) -> dict[int, np.ndarray]:
    """Per MoE layer, which rows chose other experts than the reference."""
    rows = {}
    for place, layer in enumerate(int(layer) for layer in expected["moe_layers"]):
        ids, weights = taps.routes(layer)
        wanted = expected["router_ids"][place]
        rows[layer] = (ids != wanted).any(axis=1)
        same = ~rows[layer]
        np.testing.assert_allclose(
            weights[same], expected["router_weights"][place][same], atol=2 * ROUTER_NOISE
        )
    return rows


def test_each_layer_on_the_reference_input(engine, trace, expected, name) -> None:
    hidden = expected["hidden"].astype(np.float64)
    outputs, taps = layers_alone(engine, trace, expected["hidden"])
    flips = flipped(taps, expected)
    for layer, output in enumerate(outputs):
        update = hidden[layer + 1] - hidden[layer]
        error = np.abs(output - hidden[layer + 1])
        steady = ~flips.get(layer, np.zeros(len(output), bool))
        worst = error[steady].max() / np.abs(update).max()
        print(f"{name} layer {layer}: error {worst:.4f} of update, {(~steady).sum()} rows flipped")
        assert worst < LAYER_NOISE
    if INDEX[name]["min_router_gap"] > ROUTER_NOISE:
        assert not any(rows.any() for rows in flips.values())
    assert sum(rows.sum() for rows in flips.values()) <= 0.02 * sum(map(len, flips.values()))


def test_end_to_end_is_no_worse_than_transformers_in_bf16(trace, expected, name) -> None:
    stated = INDEX[name]["hf_bf16_vs_fp32"]
    logits, wanted = np.concatenate(trace.logits), expected["logits"]
    mean = float(np.abs(logits - wanted).mean())
    differs = logits.argmax(1) != wanted.argmax(1)
    two = np.sort(wanted, axis=1)[:, -2:]
    gaps = two[:, 1] - two[:, 0]
    print(f"{name}: mean |error| {mean:.4f} of {stated['mean_abs']:.4f}, {differs.sum()} differ")
    assert mean <= stated["mean_abs"]
    # Where the two best are closer than bf16's mean error, either may come first.
    assert stated["argmax_agree"] == 1.0
    assert (gaps[differs] <= stated["mean_abs"]).all()


def test_greedy_follows_the_reference(trace, expected, name) -> None:
    margins = expected["greedy_margin"]
    noise = INDEX[name]["hf_bf16_vs_fp32"]["max_abs"]
    unsure = np.flatnonzero(margins < noise)
    decided = int(unsure[0]) if unsure.size else len(margins)
    assert trace.greedy[:decided] == expected["greedy"][:decided].tolist()
    same = int(np.sum(np.array(trace.greedy) == expected["greedy"]))
    print(f"{name}: {same} of {len(margins)} greedy tokens equal, {decided} beyond doubt")


def test_draft_level(trace, expected, name) -> None:
    got = np.concatenate(trace.draft_logits)
    mean = float(np.abs(got - expected["mtp_logits"]).mean())
    print(f"{name}: draft mean |error| {mean:.4f}")
    assert mean <= 3 * INDEX[name]["hf_bf16_vs_fp32"]["mean_abs"]
