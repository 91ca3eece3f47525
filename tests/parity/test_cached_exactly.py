"""Cold, cached, or evicted and read again: the same logits bit for bit, for every kind of state."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_fixtures import model_of
from serving_loop import Answer, Loop
from toy_family import CONFIG, FAMILY

from dgpp.engine.model_engine import DummyModel, ModelEngine
from dgpp.models import registry
from dgpp.models.forms import ModelForms
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit, pack_ids

V4, V41 = "deepseek-v4-flash-tiny", "deepseek-v4.1-flash-tiny"
VOCAB = {
    V4: 512,
    V41: 512,
    "toy": 128,
    "glm-4.7-bf16": 512,
    "mimo-bf16": 512,
    "qwen3.8-flash-next-tiny": 512,
}
PACKED = {"mimo-bf16": "fp8", "qwen3.8-flash-next-tiny": "fp8"}
"""How these keep cached context; the others as floats."""
LIMITS = EngineLimits(
    slots=4,
    vocab_size=512,
    position_ceiling=256,
    block_tokens=16,
    blocks=64,
    chunk_align=16,
    chunk_limit=64,
    candidates=8,
    snapshots=24,
)
ENDS = 5
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0)


def engines_of(name, backend_name):
    """make(**changes): an engine of the family with LIMITS but for `changes`."""
    if name == "toy":
        if backend_name != "cpu":
            pytest.skip("the toy family computes with NumPy")
        registry.FAMILIES["toy"] = FAMILY
        source = DummyModel(CONFIG)
    else:
        source = model_of(name)
    packed = PACKED.get(name, "bf16") if backend_name == "cpu" else "bf16"
    forms = ModelForms(kv_dtype=packed)
    probe = ModelEngine(
        source, msgspec.structs.replace(LIMITS, snapshots=0, vocab_size=VOCAB[name]), 2,
        backend=backend_name, forms=forms,
    )  # fmt: skip
    owned = probe.pools.snapshot_bytes
    engines: dict[tuple, ModelEngine] = {}

    def engine(**changes) -> ModelEngine:
        key = tuple(sorted(changes.items()))
        if key not in engines:
            limits = {"vocab_size": VOCAB[name], "snapshot_bytes": owned, **changes}
            engines[key] = ModelEngine(
                source,
                msgspec.structs.replace(LIMITS, **limits),
                2,
                backend=backend_name,
                forms=forms,
            )
        return engines[key]

    return engine


# The whole of it takes such a family most of a minute; they have shorter tests, below and in
# test_bounded_prefill.py.
NEXT = "qwen3.8-flash-next-tiny"
LONG = (V4, V41, NEXT)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [])
        for name in sorted(VOCAB)
    ],
)
def make(request, backend_name):
    yield engines_of(request.param, backend_name)
    registry.FAMILIES.pop("toy", None)


def text(seed: int, length: int) -> list[int]:
    """Every twentieth token or so is one behind which n-grams do not look back (`ENDS` of the
    configuration with such)."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 128, length)
    tokens[rng.random(length) < 0.05] = ENDS
    return tokens.tolist()


def ask(name: str, prompt: list[int], most: int = 5, marks=(), **rest) -> Submit:
    boundaries = pack_ids(sorted(m for m in marks if 0 < m < len(prompt)))
    rest = {"sampling": GREEDY, "boundaries": boundaries, **rest}
    return Submit(f"{name}-0", pack_ids(prompt), most, **rest)


def cold(make, *submits: Submit) -> list[Answer]:
    """Each alone on an engine that keeps nothing."""
    found = []
    for submit in submits:
        loop = Loop(make(snapshots=0), prefill_budget_tokens=0)
        found += loop.serve(submit)
    return found


def same(got: Answer, wanted: Answer) -> None:
    assert got.tokens == wanted.tokens
    np.testing.assert_array_equal(np.stack(got.logits), np.stack(wanted.logits))


def test_the_next_turn_of_a_conversation(make):
    loop = Loop(make())
    first = ask("a", text(1, 45), 20, marks=(20, 44))
    (answer,) = loop.serve(first)
    same(answer, *cold(make, first))
    prompt = [*text(1, 45), *answer.tokens, *text(2, 13)]
    second = ask("b", prompt, marks=(20, 44, 65, 77))
    (hot,) = loop.serve(second)
    # 45 + 19 tokens were fed; the last cut is at 64 and holds rows that decode wrote.
    assert hot.cached == 64
    same(hot, *cold(make, second))


@pytest.mark.parametrize("budget", [16, 48, 0, -1])
def test_every_budget_reads_alike(make, budget):
    prompts = [text(1, 100), [*text(1, 70), *text(3, 40)], text(1, 100), [*text(1, 100), 5, 6]]
    submits = [ask(f"r{i}", p, 3, marks=(33, 70, 96)) for i, p in enumerate(prompts)]
    loop = Loop(make(), prefill_budget_tokens=budget)
    for submit, wanted in zip(submits, cold(make, *submits), strict=True):
        same(*loop.serve(submit), wanted)
    assert loop.scheduler.statistics().cache.counters.hits >= 2


def test_evicted_and_read_again(make):
    loop = Loop(make(blocks=18, snapshots=3))
    submits = [ask(f"r{i}", text(50 + i % 5, 80 + i % 3), 3, marks=(40, 75)) for i in range(15)]
    for submit, wanted in zip(submits, cold(make, *submits), strict=True):
        same(*loop.serve(submit), wanted)
    assert loop.scheduler.statistics().cache.counters.evictions > 3


def test_choices_of_one_prompt_and_strangers_side_by_side(make):
    loop = Loop(make(), prefill_budget_tokens=16)
    prompt = text(4, 75)
    submits = [
        *(ask(f"n{k}", prompt, 12, marks=(60,), sampling=SAMPLED, seed=k) for k in range(3)),
        ask("other", text(5, 50), 9),
        ask("more", [*prompt, *text(6, 20)], 9, marks=(60, 80)),
    ]
    for got, wanted in zip(loop.serve(*submits), cold(make, *submits), strict=True):
        same(got, wanted)


def test_a_prompt_given_up_halfway_is_read_on_from_there(make):
    loop = Loop(make(), prefill_budget_tokens=16)
    prompt = text(7, 120)
    loop.tick(ask("a", prompt, marks=(100,)))
    for _ in range(3):
        loop.tick()
    loop.tick(cancels=("a-0",))
    second = ask("b", prompt, marks=(100,))
    same(*loop.serve(second), *cold(make, second))


def test_cuts_inside_blocks(make):
    loop = Loop(make(chunk_align=4, block_tokens=16))
    first = ask("a", text(8, 39), 8, marks=(22, 37))
    (answer,) = loop.serve(first)
    second = ask("b", [*text(8, 39), *answer.tokens, *text(9, 9)])
    third = ask("c", [*text(8, 38), *text(10, 20)])
    for submit in (second, third, second):
        named = msgspec.structs.replace(submit, id=f"{submit.id[0]}{loop._ticks}-0")
        (got,) = loop.serve(named)
        same(got, *cold(make, submit))
    assert loop.scheduler.statistics().cache.counters.hits >= 2


@pytest.mark.parametrize("name", [V4, NEXT])
def test_windows_and_entries_of_several_tokens(name, backend_name):
    """Cuts inside a window, a group of either ratio and a block, and rows that decode wrote."""
    if backend_name != "cpu":
        pytest.skip(f"the CUDA backend does not compute {name}")
    make = engines_of(name, backend_name)
    loop = Loop(make(chunk_align=1, block_tokens=16), prefill_budget_tokens=16)
    first = ask("a", text(1, 39), 8, marks=(22, 37))
    (answer,) = loop.serve(first)
    turn = [*text(1, 39), *answer.tokens, *text(2, 9)]
    submits = [ask("b", turn, 3), ask("c", [*text(1, 39)[:30], *text(3, 20)], 3), ask("d", turn, 3)]
    cached = []
    for submit, wanted in zip(submits, cold(make, *submits), strict=True):
        (got,) = loop.serve(submit)
        same(got, wanted)
        cached.append(got.cached)
    assert cached == [46, 22, 55]


TURN = st.tuples(
    st.integers(0, 2), st.integers(1, 60), st.integers(1, 8), st.booleans(), st.booleans()
)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(TURN, min_size=2, max_size=7), st.sampled_from(["full", "grow"]))
def test_any_conversation_is_what_it_would_be_cold(make, turns, mode):
    loop = Loop(make(blocks=24, snapshots=5), admission=mode, admission_window=16)
    talks: dict[int, list[int]] = {}
    marks: dict[int, list[int]] = {}
    for number, (who, more, most, keep, again) in enumerate(turns):
        tokens = talks.setdefault(who, text(90 + who, 20))
        marks.setdefault(who, []).append(len(tokens))
        prompt = [*tokens, *text(number, more)][:190]
        submit = ask(f"t{number}", prompt, most, marks[who], no_cache=not keep and again)
        (got,) = loop.serve(submit)
        same(got, *cold(make, submit))
        talks[who] = prompt if again else [*prompt, *got.tokens]
