"""DeepSeek-V4.1-Flash, whose later layers may run the end of a prompt alone: the same bits in any
company, for any cut, from a cache; and tables read where their file is mapped."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from reference_fixtures import fixture_directory, model_of
from serving_loop import Answer, Loop

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.tables import RESIDENT, Tables
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit, pack_ids

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

NAME, TINY, WINDOW, BLOCK = (
    "deepseek-v4.1-flash-mxfp4-fp8",
    "deepseek-v4.1-flash-tiny",
    16,
    16,
)
GREEDY = SamplingParams(temperature=0.0)


def limits_of(config: dict[str, object], prefill: str, snapshots: int = 0) -> EngineLimits:
    settings = MemorySettings(slots=3, kv_capacity=512, prefill=prefill)
    limits = plan_memory(config, settings).limits
    assert limits.reread == (WINDOW if prefill == "bounded" else 1)
    return msgspec.structs.replace(
        limits, block_tokens=BLOCK, blocks=40, chunk_align=BLOCK, chunk_limit=64,
        position_ceiling=256, snapshots=snapshots,
    )  # fmt: skip


def engine_of(prefill: str, snapshots: int = 0) -> ModelEngine:
    model = model_of(TINY)
    return ModelEngine(model, limits_of(model.config, prefill, snapshots), 2)


@pytest.fixture(scope="module", params=["exact", "bounded"])
def engines(request, backend_name: str) -> tuple[ModelEngine, ModelEngine]:
    """One that keeps nothing, and one with a prefix cache."""
    if backend_name != "cpu":
        pytest.skip(f"the {backend_name} backend does not compute {TINY}")
    return engine_of(request.param), engine_of(request.param, snapshots=16)


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, length).tolist()


def ask(name: str, prompt: list[int], most: int = 4) -> Submit:
    return Submit(f"{name}-0", pack_ids(prompt), most, GREEDY)


def same(got: Answer, wanted: Answer) -> None:
    assert got.tokens == wanted.tokens
    np.testing.assert_array_equal(np.stack(got.logits), np.stack(wanted.logits))


def test_any_company_and_any_cut_give_the_same_bits(engines) -> None:
    cold, _ = engines
    asked = [ask(f"r{length}", text(length, length)) for length in (7, 16, 45, 100)]
    alone = [Loop(cold, prefill_budget_tokens=0).serve(one)[0] for one in asked]
    # Chunks of sixteen: of the prompts of 45 and 100 some are before the tail, some cross into it.
    together = Loop(cold, prefill_budget_tokens=BLOCK).serve(*asked)
    for got, wanted in zip(together, alone, strict=True):
        same(got, wanted)


def test_what_is_cached_of_a_prompt_is_what_it_would_be_cold(engines) -> None:
    cold, keeping = engines
    loop = Loop(keeping)
    first = ask("a", text(1, 70), 30)
    (answer,) = loop.serve(first)
    longer = [*text(1, 70), *answer.tokens, *text(2, 33)]
    # A turn later; the same but for its end; the first prompt again.
    prompts = [longer, [*longer[:100], *text(3, 20)], text(1, 70)]
    cached = []
    for number, prompt in enumerate(prompts):
        asked = ask(f"b{number}", prompt)
        (got,) = loop.serve(asked)
        same(got, Loop(cold).serve(asked)[0])
        cached.append(got.cached)
    reread = cold.limits.reread
    assert all(
        0 < found <= len(prompt) - reread for found, prompt in zip(cached, prompts, strict=True)
    )


def test_later_layers_see_the_end_of_a_prompt_alone(engines) -> None:
    cold, _ = engines
    if cold.limits.reread == 1:
        pytest.skip("all layers read all of it")
    prompt = text(5, 60)
    (bounded,) = Loop(cold).serve(ask("a", prompt, 1))
    (exact,) = Loop(engine_of("exact")).serve(ask("a", prompt, 1))
    assert not np.array_equal(bounded.logits[0], exact.logits[0])
    short = prompt[:WINDOW]
    (bounded,) = Loop(cold).serve(ask("b", short, 1))
    (exact,) = Loop(engine_of("exact")).serve(ask("b", short, 1))
    np.testing.assert_array_equal(bounded.logits[0], exact.logits[0])


def test_a_prompt_that_is_scored_is_run_whole(engines) -> None:
    cold, _ = engines
    if cold.limits.reread == 1:
        pytest.skip("all layers read all of it")
    asked = msgspec.structs.replace(ask("a", text(5, 60), 2), scored=1)
    same(*Loop(cold).serve(asked), *Loop(engine_of("exact")).serve(asked))


def test_tables_that_are_mapped_give_what_they_give_in_memory(backend_name: str) -> None:
    if backend_name != "cpu":
        pytest.skip(f"the {backend_name} backend does not compute {NAME}")
    checkpoint, asked = Checkpoint(fixture_directory(NAME)), ask("a", text(6, 40), 3)
    limits = limits_of(checkpoint.config, "bounded")
    mapped, resident = (
        ModelEngine(checkpoint, limits, 2, tables=tables)
        for tables in (Tables(mapped=True), RESIDENT)
    )
    same(*Loop(mapped).serve(asked), *Loop(resident).serve(asked))
