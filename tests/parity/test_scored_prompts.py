"""How likely a prompt's tokens were: the reference's numbers, whatever else the server does."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from engine_drive import Served
from reference_fixtures import fixture_directory

from dgpp.check.world import run_world
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import CachePolicy
from dgpp.sched.request import Submit, pack_ids

# The first test may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

FAMILIES = ["glm-4.7-bf16", "qwen3.8-27b-bf16"]
# Few candidates, so that most tokens are none of them, and a cache that would spare the reading.
LIMITS = EngineLimits(
    slots=3,
    vocab_size=512,
    position_ceiling=128,
    block_tokens=16,
    blocks=32,
    chunk_align=16,
    chunk_limit=64,
    candidates=4,
)
GREEDY = SamplingParams(temperature=0.0, logprobs=6)


def reference(name: str) -> tuple[list[int], np.ndarray]:
    """The prompt, and the log probabilities float64 [T, V] that the reference gives after it."""
    with np.load(fixture_directory(name) / "expected.npz") as found:
        ids, logits = found["ids"].tolist(), found["logits"].astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    return ids, logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def build(name: str, backend: str = "cpu", collective=None, **changes) -> ModelEngine:
    limits = msgspec.structs.replace(LIMITS, **changes)
    source = Checkpoint(fixture_directory(name))
    return ModelEngine(source, limits, 1, backend=backend, collective=collective)


def score(served: Served, prompt: list[int], top: int, most: int = 0) -> list:
    name = f"scored{len(served.scored)}-0"
    submit = Submit(name, pack_ids(prompt), most, GREEDY, scored=top)
    served.tick(submit)
    served.run()
    return served.scored[name]


def compare(rows: list, ids: list[int], expected: np.ndarray, top: int) -> None:
    assert len(rows) == len(ids) - 1
    for row, token, wanted in zip(rows, ids[1:], expected[:-1], strict=True):
        assert row.logprob == pytest.approx(wanted[token], abs=1e-3)
        assert len(row.ids) == len(row.values) == top
        np.testing.assert_allclose(row.values, np.sort(wanted)[::-1][:top], atol=1e-3)
        np.testing.assert_allclose(wanted[list(row.ids)], row.values, atol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_beside_others_and_past_the_cache(name: str) -> None:
    ids, expected = reference(name)
    probe = build(name)
    engine = build(name, snapshots=8, snapshot_bytes=probe.pools.snapshot_bytes)
    served = Served(engine, cache_policy=CachePolicy(min_tokens=0))
    # The same prompt, read and kept; then a mate that decodes while the prompt is scored.
    served.tick(Submit("kept-0", pack_ids(ids), 2, GREEDY))
    served.run()
    served.tick(Submit("mate-0", pack_ids(ids[:20]), 12, GREEDY))
    served.tick()
    for top in (0, 1, 5):
        compare(score(served, ids, top), ids, expected, top)
    cache = served.scheduler.statistics().cache
    assert cache.entries
    hits = cache.counters.hits
    # The prompt is there to be found, by whoever does not ask how likely it was.
    served.tick(Submit("plain-0", pack_ids(ids), 1, GREEDY))
    served.run()
    assert served.scheduler.statistics().cache.counters.hits == hits + 1
    served.scheduler.check()


def test_a_world_tells_the_same_on_every_rank() -> None:
    ids, expected = reference("glm-4.7-bf16")

    def rank_of(rank, collective):
        return score(Served(build("glm-4.7-bf16", collective=collective)), ids, 5)

    first, second = run_world(2, rank_of)
    assert first == second
    compare(first, ids, expected, 5)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_answer_read_as_a_prompt_has_its_numbers(name: str, backend_name) -> None:
    ids, _ = reference(name)
    served = Served(build(name, backend_name, depth=int(backend_name == "cuda")))
    served.tick(Submit("answer-0", pack_ids(ids), 6, GREEDY))
    served.run()
    steps = served.answers["answer-0"]
    answer = [token for tokens, _ in steps for token in tokens]
    told = [row for _, rows in steps for row in rows]
    assert len(told) == len(answer) == 6
    again = score(served, ids + answer, 6, most=1)
    assert again[len(ids) - 1 :] == told


def test_a_prompt_of_one_token_has_nothing_to_tell() -> None:
    served = Served(build("glm-4.7-bf16"))
    served.tick(Submit("one-0", pack_ids([7]), 0, GREEDY, scored=3))
    served.run()
    assert served.scored == {}
    assert [tokens for tokens, _ in served.answers["one-0"]] == [()]
