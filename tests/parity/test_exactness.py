"""A request's logits do not depend on its company, its place, or how its prompt was cut."""

from __future__ import annotations

import numpy as np
import pytest
from reference_fixtures import model_of

from dgpp.engine.model_engine import ModelEngine
from dgpp.models.forms import ModelForms
from dgpp.sample.candidates import SlotTables
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids

SLOTS, BLOCK, EACH, VOCAB = 16, 16, 16, 512
LIMITS = EngineLimits(
    slots=SLOTS,
    vocab_size=VOCAB,
    position_ceiling=BLOCK * EACH,
    block_tokens=BLOCK,
    blocks=SLOTS * EACH,
    chunk_align=BLOCK,
    chunk_limit=BLOCK * EACH,
    candidates=8,
)
FAMILIES = [
    "deepseek-v4-flash-tiny",
    "glm-4.7-bf16",
    "glm-4.7-nvfp4",
    "glm-5.3-bf16",
    "glm-5.3-flash-bf16",
    "mimo-bf16",
    "qwen3.8-27b-bf16",
    "qwen3.8-flash-next-tiny",
    "glm-5.3-bf16 fp4",
    "mimo-bf16 fp8",
    # A shorter look at it, in both ways to read a prompt, is in test_bounded_prefill.py.
    pytest.param("deepseek-v4.1-flash-tiny", marks=pytest.mark.long),
]
"""Fixtures, and after them how cached context is packed."""
GREEDY = SamplingParams(temperature=0.0)


def tables() -> SlotTables:
    return SlotTables(
        np.zeros((SLOTS, VOCAB), np.int32),
        np.zeros((SLOTS, VOCAB), np.float32),
        np.zeros((SLOTS, 1, VOCAB // 32), np.uint32),
        np.zeros(SLOTS, np.int32),
    )


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, backend_name: str) -> ModelEngine:
    if backend_name == "cuda" and not request.param.startswith("glm-4.7"):
        pytest.skip(f"the CUDA backend does not compute {request.param}")
    name, _, packed = request.param.partition(" ")
    forms = ModelForms(kv_dtype=packed or "bf16")
    return ModelEngine(model_of(name), LIMITS, 2, backend=backend_name, forms=forms)


class Driver:
    """Opens prompts in slots and returns the adjusted logits of each step's rows."""

    def __init__(self, engine: ModelEngine, seed: int) -> None:
        self.engine = engine
        self.tables = tables()
        self.blocks = np.random.default_rng(seed).permutation(SLOTS * EACH)

    def open(self, slot: int, prompt: np.ndarray) -> Open:
        blocks = tuple(int(b) for b in self.blocks[slot * EACH : (slot + 1) * EACH])
        return Open(slot, Submit(f"{slot}-0", pack_ids(prompt), 9, GREEDY), blocks)

    def step(self, **plan) -> np.ndarray:
        self.engine.launch(Plan(1, **plan), self.tables)
        picked = self.engine.collect(1)
        return self.engine.full_rows(1, list(range(len(picked.held))))

    def read(self, slot: int, prompt: np.ndarray, cut: int) -> np.ndarray:
        self.engine.forward(Plan(0, closes=(slot,), opens=(self.open(slot, prompt),)))
        rows = np.zeros((0, VOCAB))
        for start in range(0, len(prompt), cut):
            count = min(cut, len(prompt) - start)
            chunk = PrefillChunk(slot, start, count, last=start + count == len(prompt))
            rows = self.step(prefills=(chunk,))
        return rows[0]


ENDS = 5
"""The token of qwen3.8-flash-next-tiny behind which n-grams do not look back."""


def prompts() -> list[np.ndarray]:
    """Among them some with such a token on either side of a cut, and one further on each side."""
    rng = np.random.default_rng(5)
    sizes = (1, 15, 16, 17, 100, 129, 131, 200, *range(30, 38))
    texts = [rng.integers(0, VOCAB, n) for n in sizes]
    for text in texts[4:]:
        ends = np.array([14, 32, 46, 63, 96, 97, 145])
        text[ends[ends < len(text)]] = ENDS
    return texts


def test_every_cut_of_a_prompt_gives_the_same_bits(engine: ModelEngine) -> None:
    for prompt, least in ((prompts()[4], 1), (prompts()[7], 7)):
        whole = Driver(engine, 1).read(3, prompt, len(prompt))
        for cut in (BLOCK, 3 * BLOCK, least):
            np.testing.assert_array_equal(Driver(engine, cut).read(7, prompt, cut), whole)


def test_decode_equals_prefill_bit_for_bit(engine: ModelEngine) -> None:
    prompt = prompts()[5]
    driver = Driver(engine, 2)
    driver.read(0, prompt[:-1], BLOCK)
    row = DecodeRow(0, len(prompt) - 1, int(prompt[-1]))
    decoded = driver.step(decodes=(row,))[0]
    np.testing.assert_array_equal(decoded, driver.read(1, prompt, len(prompt)))


def test_rows_alone_batched_and_permuted(engine: ModelEngine) -> None:
    texts = prompts()
    alone = []
    for text in texts:
        driver = Driver(engine, 3)
        driver.read(0, text, 64)
        alone.append(driver.step(decodes=(DecodeRow(0, len(text), 77),))[0])
    rng = np.random.default_rng(6)
    for count in (2, 3, 5, 8, 16):
        chosen = rng.permutation(16)[:count]
        driver = Driver(engine, count)
        for slot, index in enumerate(chosen):
            driver.read(slot, texts[index], 48)
        order = rng.permutation(count)
        decodes = tuple(DecodeRow(int(s), len(texts[chosen[s]]), 77) for s in order)
        for row, slot in zip(driver.step(decodes=decodes), order, strict=True):
            np.testing.assert_array_equal(row, alone[chosen[slot]])


def test_prefill_beside_decode_changes_neither(engine: ModelEngine) -> None:
    first, second = prompts()[4], prompts()[6]
    driver = Driver(engine, 9)
    expected_prefill = driver.read(5, second, len(second))
    driver.read(2, first, 32)
    expected_decode = driver.step(decodes=(DecodeRow(2, len(first), 3),))[0]
    # A recurrence has taken the row in: its slot is read again.
    driver.read(2, first, 32)
    driver.engine.forward(Plan(0, closes=(5,), opens=(driver.open(5, second),)))
    chunk = PrefillChunk(5, 0, len(second), last=True)
    both = driver.step(prefills=(chunk,), decodes=(DecodeRow(2, len(first), 3),))
    np.testing.assert_array_equal(both[0], expected_prefill)
    np.testing.assert_array_equal(both[1], expected_decode)
