"""Models held in other forms than the checkpoint's: values, bytes, and what is refused by name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_fixtures import FIXTURES, release

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.draft_vocab import choose_draft_vocab, read_draft_vocab
from dgpp.config.engine_settings import RopeScaling
from dgpp.errors import ConfigError
from dgpp.models.dummy_weights import DummyWeights
from dgpp.models.encoding import fp8_cut
from dgpp.models.forms import ModelForms
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.models.sources import Linear, LoadedWeights
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.weights import Form, Part, matrix_bytes

QWEN = FIXTURES / "qwen3.8-27b-bf16"
FP8 = ModelForms(dense_weights="fp8")
BF12 = ModelForms(bf16_weights="bf12")


def config_of(name: str) -> dict[str, object]:
    return json.loads((FIXTURES / name / "config.json").read_text())


class Kept(CpuBackend):
    """Remembers the parts of every matrix in the order in which they were taken over."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.parts: list[list[Part]] = []

    def matrix(self, parts):
        self.parts.append(list(parts))
        return super().matrix(parts)


@cache
def loaded(folder: Path, forms: ModelForms) -> list[list[Part]]:
    checkpoint, backend = Checkpoint(folder), Kept()
    family = family_of(checkpoint.config)
    source = LoadedWeights(Binding(checkpoint), backend, forms=forms)
    family.build(family.settle(checkpoint.config, forms), source, drafts=True)
    return backend.parts


def bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


E4M3 = np.array([e4m3(code) for code in range(256)])


def fp8_values(part: Part) -> np.ndarray:
    """float64 [N, K] of a part with a grid of any blocks."""
    high, wide = part.block
    scale = part.scale.repeat(high, 0)[: part.rows].repeat(wide, 1)[:, : part.columns]
    return E4M3[part.data] * scale


def test_dense_bf16_becomes_fp8_within_half_a_step_and_nothing_else_changes() -> None:
    changed = 0
    for stored, held in zip(loaded(QWEN, ModelForms()), loaded(QWEN, FP8), strict=True):
        for before, after in zip(stored, held, strict=True):
            if after.form is not Form.FP8_BLOCK:
                np.testing.assert_array_equal(before.data, after.data)
                continue
            changed += 1
            values = bf16(before.data).astype(np.float64)
            error = np.abs(fp8_values(after) - values)
            # e4m3 has four bits of mantissa with the leading one: half a step is a sixteenth of
            # the power of two, and 2^-10 of the scale below the least normal.
            scale = np.abs(values).max()
            assert (error <= np.abs(values) / 16 + scale * 2.0**-10 / 448 * 1.01).all()
    assert changed > 20


@settings(deadline=None, max_examples=30)
@given(data=st.data(), rows=st.integers(1, 400), groups=st.integers(1, 12))
def test_any_cut_has_the_fp8_values_of_the_whole_matrix(data, rows: int, groups: int) -> None:
    rng = np.random.default_rng(rows * groups)
    bits = (rng.standard_normal((rows, 32 * groups), np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )
    stored = Part(Form.BF16, bits)
    values = fp8_values(fp8_cut(stored, [(0, rows)], (0, 32 * groups))[0])
    first = data.draw(st.integers(0, groups - 1))
    span = (32 * first, 32 * data.draw(st.integers(1, groups - first)))
    ranges = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, rows - 1))
        ranges.append((start, data.draw(st.integers(1, rows - start))))
    for (start, count), part in zip(ranges, fp8_cut(stored, ranges, span), strict=True):
        wanted = values[start : start + count, span[0] : sum(span)]
        np.testing.assert_array_equal(fp8_values(part), wanted)


def test_a_world_that_cuts_between_groups_of_columns_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(config_of(QWEN.name), MemorySettings(forms=FP8), 2)
    message = str(caught.value)
    assert "down_proj into 48 columns, which are no whole groups of 32 (FP8_BLOCK)" in message


def held_bytes(parts: list[Part], form: Form) -> int:
    return sum(matrix_bytes(form, part.rows, part.columns) for part in parts)


@pytest.mark.parametrize(("forms", "form"), [(FP8, Form.FP8_BLOCK), (BF12, Form.BF12)])
def test_the_plan_has_the_bytes_of_what_is_held(forms: ModelForms, form: Form) -> None:
    plan = plan_memory(config_of(QWEN.name), MemorySettings(forms=forms, drafts=True))
    before = plan_memory(config_of(QWEN.name), MemorySettings(drafts=True))
    held = [part for parts in loaded(QWEN, forms) for part in parts if part.form is form]
    assert held
    saved = held_bytes(held, Form.BF16) - held_bytes(held, form)
    assert before.weight_bytes - plan.weight_bytes == pytest.approx(saved, rel=0.001)
    assert f"of {form.name.lower()}" in plan.notes[0]
    assert plan.limits == before.limits


def test_the_gates_of_a_delta_net_stay_in_bf16() -> None:
    plan = plan_memory(config_of(QWEN.name), MemorySettings(forms=FP8))
    sizes = {item.name: item.bytes for item in plan.items}
    alone = plan_memory(config_of(QWEN.name), MemorySettings())
    assert sizes["weights: delta gates"] == next(
        item.bytes for item in alone.items if item.name == "weights: delta gates"
    )


@pytest.mark.parametrize("forms", [FP8, BF12])
def test_random_weights_are_made_in_the_form_asked_for(forms: ModelForms) -> None:
    config = config_of(QWEN.name)
    family = family_of(config)
    model = family.build(
        family.settle(config, forms), DummyWeights(CpuBackend(1, 1), forms=forms), drafts=False
    )
    assert model.head.form is forms.held("head", Form.BF16) is not Form.BF16


@pytest.mark.parametrize(("rows", "multiple"), [((36, 36), 36), ((64, 16, 16), 16), ((30, 25), 5)])
def test_random_weights_are_asked_for_with_what_parts_have_in_common(
    rows: tuple[int, ...], multiple: int
) -> None:
    """A GPU holds room behind rows that end inside a band."""
    asked: list[tuple[object, ...]] = []
    backend = CpuBackend(1, 1)
    backend.dummy = lambda *arguments: asked.append(arguments)
    linears = [Linear(f"m.{i}", n, 64) for i, n in enumerate(rows)]
    DummyWeights(backend, seed=3).matrix("item", linears)
    assert asked == [(Form.BF16, sum(rows), 64, 3 << 32, multiple)]


@pytest.mark.parametrize(
    ("forms", "name", "message"),
    [
        (FP8, "glm-4.7-bf16", "engine.dense_weights: fp8 does not apply to glm-4.7"),
        (
            ModelForms(fp8_head="mma", dense_weights="fp8"),
            "mimo-bf16",
            "engine.dense_weights: fp8 does not apply to mimo",
        ),
        (
            ModelForms(mtp_expert_format="bf16"),
            "qwen3.8-27b-bf16",
            "engine.mtp_expert_format: bf16 does not apply to qwen3.8-27b",
        ),
        (
            ModelForms(rope_scaling=RopeScaling(factor=2.0, original_max_position_embeddings=4096)),
            "glm-5.3-bf16",
            "engine.rope_scaling does not apply to glm-5.3",
        ),
        (
            ModelForms(rope_scaling=RopeScaling(factor=2.0, original_max_position_embeddings=77)),
            "qwen3.8-27b-bf16",
            "engine.rope_scaling.original_max_position_embeddings: 77, config.json's",
        ),
    ],
)
def test_what_does_not_apply_is_refused_by_name(forms, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_memory(config_of(name), MemorySettings(forms=forms))
    assert str(caught.value).startswith(message)


def test_a_key_that_finds_nothing_to_do_says_so() -> None:
    config = config_of("glm-4.7-nvfp4")
    notes = plan_memory(config, MemorySettings(forms=BF12)).notes
    assert any(note.startswith("attention, ") and "bf12" in note for note in notes)
    both = ModelForms(dense_weights="fp8", bf16_weights="bf12+bf16", fp8_head="mma")
    notes = plan_memory(config_of(QWEN.name), MemorySettings(forms=both)).notes
    assert "fp8_head mma: the cpu backend has one kernel for any number of rows" in notes


def test_the_cuda_backend_names_what_it_does_not_read() -> None:
    remedy = "leave it out, or set engine.backend to cpu"
    said = f"engine.bf16_weights: bf12 is not on the cuda backend yet; {remedy}"
    assert BF12.missing("cuda") == (said,)
    assert ModelForms(kv_dtype="fp8", draft_vocab="x").unread("cuda") == {
        "kv_dtype": "fp8",
        "draft_vocab": "x",
    }
    assert BF12.missing("cpu") == ModelForms(dense_weights="fp8").missing("cuda") == ()


def test_a_stretched_context_may_be_planned() -> None:
    config = config_of(QWEN.name)
    trained = config["text_config"]["max_position_embeddings"]  # type: ignore[index]
    scaling = RopeScaling(factor=2.0, original_max_position_embeddings=trained)
    sizes = MemorySettings(kv_capacity=4 * trained, forms=ModelForms(rope_scaling=scaling))
    plan = plan_memory(config, sizes)
    assert plan.limits.position_ceiling == 2 * trained
    assert f"rope_scaling yarn: factor 2 over {trained} positions" in plan.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"[1, 2]", "no .npy file"),
        (np.zeros((2, 2), np.int32), "not one row of int32 or int64 ids"),
        (np.zeros(2, np.float32), "not one row of int32 or int64 ids"),
        (np.zeros(0, np.int64), "no ids"),
        (np.array([3, 512]), "id 512 is not within 0..511"),
        (np.array([-1, 3]), "id -1 is not within 0..511"),
        (np.array([{}, 1]), "no .npy file"),
    ],
)
def test_a_wrong_draft_vocabulary_is_named(tmp_path: Path, content, message: str) -> None:
    path = tmp_path / "ids.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(ConfigError) as caught:
        read_draft_vocab(path, 512)
    assert str(caught.value).startswith(f"engine.draft_vocab: {path}: ")
    assert message in str(caught.value)


def test_a_draft_vocabulary_is_read_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([9, 2, 9, 511], np.int64))
    assert read_draft_vocab(tmp_path / "ids.npy", 512).tolist() == [2, 9, 511]


KIB = 1024


@pytest.mark.parametrize(
    ("name", "kv_dtype", "token_bytes"),
    [
        # 79 layers of [512 latent | 64 rotated], 22 of them with an index key of 128.
        ("glm-5.3-int4-int8", "fp8", 79 * (512 + 4 + 128) + 22 * (128 + 4)),
        ("glm-5.3-int4-int8", "fp4", 79 * (256 + 32 + 4 + 128) + 22 * (128 + 4)),
        # 12 layers of 512 latents, an index key of 128 per four tokens.
        ("glm-5.3-flash-fp8", "fp8", 12 * (512 + 4) + 12 * (128 + 4) // 4),
        ("glm-5.3-flash-fp8", "fp4", 12 * (256 + 32 + 4) + 12 * (128 + 4) // 4),
        # Of nine global layers 4 heads of 192 and 128; what has a window is kept in rings.
        ("mimo-v2.6-flash-mxfp4-fp8", "fp8", 9 * 4 * (192 + 4 + 128 + 4)),
    ],
)
def test_packed_context_takes_the_bytes_of_its_rows(name, kv_dtype, token_bytes) -> None:
    forms = ModelForms(kv_dtype=kv_dtype)
    plan = plan_memory(release(name), MemorySettings(drafts=True, forms=forms))
    assert plan.token_bytes == token_bytes
    assert f"kv_dtype {kv_dtype}: rows of cached context are packed" in plan.notes
    if name == "glm-5.3-int4-int8":
        assert round(token_bytes / KIB, 1) == {"fp8": 52.5, "fp4": 35.2}[kv_dtype]


@pytest.mark.parametrize(("name", "kv_dtype"), [("glm-4.7-bf16", "fp4"), ("mimo-bf16", "fp4")])
def test_a_context_that_is_not_kept_so_is_refused(name: str, kv_dtype: str) -> None:
    family = family_of(config_of(name)).name
    with pytest.raises(ConfigError) as caught:
        plan_memory(config_of(name), MemorySettings(forms=ModelForms(kv_dtype=kv_dtype)))
    assert str(caught.value) == (
        f"engine.kv_dtype: {kv_dtype} does not apply to {family}, whose context is kept in "
        "bf16 or fp8"
    )


TOKENIZER = json.loads((FIXTURES / "tiny-chat" / "tokenizer.json").read_text())


def test_a_draft_vocabulary_has_the_most_frequent_merges() -> None:
    vocab, merges = TOKENIZER["model"]["vocab"], TOKENIZER["model"]["merges"]
    added = {token["id"] for token in TOKENIZER["added_tokens"]}
    letters = {number for text, number in vocab.items() if len(text) == 1}
    size = len(added | letters) + 9
    ids = choose_draft_vocab(TOKENIZER, size).tolist()
    made = {vocab["".join(pair)] for pair in merges[:9]}
    assert ids == sorted(added | letters | made)
    old = {"model": TOKENIZER["model"] | {"merges": [" ".join(pair) for pair in merges]}}
    assert set(choose_draft_vocab(TOKENIZER | old, size)) == set(ids)
    everything = choose_draft_vocab(TOKENIZER, 10**6)
    assert len(everything) == len(added | set(vocab.values()))
    with pytest.raises(ConfigError, match="10 ids are fewer than"):
        choose_draft_vocab(TOKENIZER, 10)
    with pytest.raises(ConfigError, match="the tokenizer is no BPE"):
        choose_draft_vocab({"model": {"type": "Unigram"}}, 10)
