"""The CUDA engine ahead of verdicts, its kernels run on the host: recorded steps, fed picks."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from engine_drive import Served

from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit, pack_ids

pytestmark = pytest.mark.skipif(
    os.environ.get("DGPP_TEST_EMULATED") != "1", reason="needs DGPP_TEST_EMULATED=1"
)
FIXTURE = Path(__file__).parents[1] / "fixtures" / "glm-4.7-bf16"
LIMITS = EngineLimits(
    slots=3,
    vocab_size=512,
    position_ceiling=1088,
    block_tokens=64,
    blocks=20,
    chunk_align=8,
    chunk_limit=16,
    candidates=64,
)
KINDS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_p=0.8),
    SamplingParams(temperature=3.0),
    SamplingParams(temperature=0.7, top_k=20, logit_bias=((7, 3.0), (9, -100.0))),
]


def answers(depth: int) -> Served:
    limits = msgspec.structs.replace(LIMITS, depth=depth)
    engine = ModelEngine(FIXTURE, limits, 1, backend="cuda")
    engine.warm_up()
    if depth:
        engine.record()
    served = Served(engine)
    for number, sampling in enumerate(KINDS):
        prompt = np.arange(3 + 4 * number) * 7 % 500
        served.tick(Submit(f"r{number}-0", pack_ids(prompt), 3 + number, sampling, seed=number))
    served.run()
    return served


def test_answers_are_those_of_one_step_at_a_time() -> None:
    plain, ahead = answers(0), answers(1)
    assert ahead.answers == plain.answers
    assert [sum(len(tokens) for tokens, _ in ahead.answers[f"r{n}-0"]) for n in range(4)] == [
        3, 4, 5, 6,
    ]  # fmt: skip
    assert ahead.replayed > 0 == plain.replayed
    assert ahead.decided > 0 == plain.decided
