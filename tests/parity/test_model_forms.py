"""Models held in other forms than the checkpoint's, driven as they are served, beside oracles."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from dgpp.check.expected import Expected, stated_tolerances
from dgpp.check.forward import CheckOptions, check_checkpoint, engine_limits
from dgpp.check.trace import Trace
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.config.engine_settings import RopeScaling
from dgpp.engine.model_engine import ModelEngine
from dgpp.models.forms import ModelForms

sys.path.append(str(Path(__file__).parents[1] / "unit" / "models"))
from model_fixtures import FIXTURES, rewrite

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

QWEN = FIXTURES / "qwen3.8-27b-bf16"
IDS = np.random.default_rng(4).integers(0, 490, 37).astype(np.int32)
ANSWER = np.array([7, 300, 12, 5], np.int32)


def run(folder: Path, forms: ModelForms, *, drafts: bool = False) -> tuple[Trace, ModelEngine]:
    checkpoint = Checkpoint(folder)
    limits = engine_limits(checkpoint.config, len(IDS) + len(ANSWER))
    engine = ModelEngine(checkpoint, limits, 1, forms=forms, drafts=drafts)
    trace = Trace(engine, IDS, ANSWER)
    trace.run()
    return trace, engine


def logits_of(trace: Trace) -> np.ndarray:
    return np.concatenate([*trace.logits, np.stack(trace.greedy_logits)])


@pytest.mark.parametrize("name", ["qwen3.8-27b-bf16", "glm-5.3-flash-bf16", "glm-4.7-nvfp4"])
def test_twelve_bits_give_every_bit_of_sixteen(name: str) -> None:
    plain, _ = run(FIXTURES / name, ModelForms())
    packed, engine = run(FIXTURES / name, ModelForms(bf16_weights="bf12"))
    np.testing.assert_array_equal(logits_of(packed), logits_of(plain))
    assert engine.model.head.form.name == "BF12"


E4M3 = np.array(
    [(1 + c % 8 / 8) * 2.0 ** (c // 8 - 7) if c >= 8 else c / 8 * 2.0**-6 for c in range(127)]
)
EDGES = (E4M3[1:] + E4M3[:-1]) / 2


def fp8_tensors(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of blocks of 128 × 128, by search among all codes."""
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    rows, columns = values.shape
    codes = np.zeros((rows, columns), np.uint8)
    scales = np.zeros((-(-rows // 128), -(-columns // 128)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = np.s_[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
            scale = np.float32(np.abs(values[at]).max() / np.float32(448))
            scales[i, j] = scale
            sizes = np.abs((values[at] / scale).astype(np.float64))
            low, high = np.searchsorted(EDGES, sizes), np.searchsorted(EDGES, sizes, "right")
            nearest = np.where(low % 2 == 0, low, high)
            codes[at] = nearest + 128 * np.signbit(values[at])
    return codes, scales


def fp8_checkpoint(folder: Path) -> Path:
    """The fixture as a release in FP8 would have it, the head too."""
    config = json.loads((QWEN / "config.json").read_text())
    kept = {"model.language_model.embed_tokens", "mtp.fc"}

    def change(tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight")]:
            kind, shape, blob = tensors[name]
            module = name.removesuffix(".weight")
            if len(shape) != 2 or "in_proj_a" in name or "in_proj_b" in name or "visual" in name:
                kept.add(module)
            if module in kept or kind != "BF16":
                continue
            codes, scales = fp8_tensors(np.frombuffer(blob, np.uint16).reshape(shape))
            tensors[name] = ["F8_E4M3", shape, codes.tobytes()]
            grid = list(scales.shape)
            tensors[f"{module}.weight_scale_inv"] = ["F32", grid, scales.tobytes()]

    rewrite(QWEN / "model.safetensors", folder / "model.safetensors", change)
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": sorted(kept),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_dense_fp8_computes_what_a_release_in_fp8_would(tmp_path: Path) -> None:
    wanted, engine = run(fp8_checkpoint(tmp_path), ModelForms(), drafts=True)
    assert engine.model.head.form.name == "FP8_BLOCK"
    got, _ = run(QWEN, ModelForms(dense_weights="fp8", fp8_head="mma"), drafts=True)
    np.testing.assert_array_equal(logits_of(got), logits_of(wanted))
    for mine, theirs in zip(got.draft_logits[0], wanted.draft_logits[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    plain, _ = run(QWEN, ModelForms())
    error = np.abs(logits_of(got) - logits_of(plain))
    assert 0 < error.mean() < 0.2 * logits_of(plain).std()


@pytest.mark.parametrize("forms", [{}, {"dense_weights": "fp8"}, {"bf16_weights": "bf12"}])
def test_drafts_are_limited_to_a_vocabulary(tmp_path: Path, forms: dict[str, str]) -> None:
    ids = np.array([500, 3, 8, 64, 511, 33])
    np.save(tmp_path / "ids.npy", ids)
    whole, _ = run(QWEN, ModelForms(**forms), drafts=True)
    path = str(tmp_path / "ids.npy")
    few, _ = run(QWEN, ModelForms(draft_vocab=path, **forms), drafts=True)
    np.testing.assert_array_equal(logits_of(few), logits_of(whole))
    for got, wanted in zip(few.draft_logits[0], whole.draft_logits[0], strict=True):
        np.testing.assert_array_equal(got[:, ids], wanted[:, ids])
        assert np.isneginf(np.delete(got, ids, axis=1)).all()


def yarn_table(positions: int, rotated: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """float64 [positions, rotated]: cosines, then sines, of the stretched frequencies."""
    base = theta ** (-2 * np.arange(rotated // 2) / rotated)
    context = scaling.original_max_position_embeddings * scaling.mrope_cache_factor

    def dimension(turns: float) -> float:
        return rotated * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), rotated - 1)
    share = np.clip((np.arange(rotated // 2) - low) / max(high - low, 0.001), 0, 1)
    angles = np.outer(np.arange(positions), base / scaling.factor * share + base * (1 - share))
    factor = 0.1 * math.log(scaling.factor) + 1
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * factor


def test_a_longer_context_stretches_the_rotary_table_alone() -> None:
    scaling = RopeScaling(factor=2.0, original_max_position_embeddings=4096, mrope_cache_factor=4.0)
    plain, _ = run(QWEN, ModelForms())
    long, engine = run(QWEN, ModelForms(rope_scaling=scaling))
    table = engine.model.layers[3].mixer._attention.angles.array
    np.testing.assert_allclose(table, yarn_table(len(table), 8, 1e7, scaling), atol=2e-6)
    # Layers before the first attention never see it.
    first = [trace.taps.hidden_states() for trace in (plain, long)]
    np.testing.assert_array_equal(first[0][3], first[1][3])
    assert not np.array_equal(first[0][4], first[1][4])


@pytest.mark.parametrize(
    ("name", "kv_dtype", "most"),
    [
        ("glm-5.3-bf16", "fp8", 0.25),
        ("glm-5.3-bf16", "fp4", 0.5),
        ("glm-5.3-flash-bf16", "fp8", 0.15),
        ("glm-5.3-flash-bf16", "fp4", 0.5),
        ("mimo-bf16", "fp8", 0.05),
        ("qwen3.8-27b-bf16", "fp8", 0.05),
        ("glm-4.7-bf16", "fp8", 0.05),
    ],
)
def test_packed_context_moves_logits_by_a_share_of_their_spread(name, kv_dtype, most) -> None:
    plain, engine = run(FIXTURES / name, ModelForms())
    packed, held = run(FIXTURES / name, ModelForms(kv_dtype=kv_dtype))
    wanted = logits_of(plain)
    error = np.abs(logits_of(packed) - wanted).mean() / wanted.std()
    assert 0 < error < most
    assert held.pools.block_bytes < 0.6 * engine.pools.block_bytes


def test_a_check_holds_the_model_as_it_is_told() -> None:
    def report(**forms: str):
        options = CheckOptions(threads=1, forms=ModelForms(**forms))
        file = QWEN / "expected.npz"
        tolerances = stated_tolerances(file)
        assert tolerances is not None
        return check_checkpoint(Checkpoint(QWEN), Expected(file), tolerances, options)

    assert report(bf16_weights="bf12").ok
    packed = report(kv_dtype="fp8")
    assert not packed.ok
    # The fourth layer is the first that keeps keys and values.
    hidden = [failure for failure in packed.failures if failure.startswith("hidden after")]
    assert hidden[0].startswith("hidden after layer 3")
