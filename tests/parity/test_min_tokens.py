"""An answer of at least so many tokens: its end tokens cannot come before, and can right after."""

from __future__ import annotations

import pytest
from engine_drive import Served
from reference_fixtures import fixture_directory

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.params import SamplingParams
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit, pack_ids

pytestmark = pytest.mark.timeout(600)

PROMPT = [5, 17, 99, 230, 7]


def test_the_likeliest_end_waits(backend_name) -> None:
    limits = EngineLimits(
        slots=2, vocab_size=512, position_ceiling=64, block_tokens=16, blocks=8, chunk_align=16,
        chunk_limit=32, candidates=8, depth=int(backend_name == "cuda"),
    )  # fmt: skip
    source = Checkpoint(fixture_directory("glm-4.7-bf16"))
    served = Served(ModelEngine(source, limits, 1, backend=backend_name))

    def say(name: str, stop: tuple[int, ...], least: int) -> list[int]:
        params = SamplingParams(temperature=0.0, min_tokens=least)
        served.tick(Submit(name, pack_ids(PROMPT), 8, params, stop_ids=stop))
        served.run()
        return [token for tokens, _ in served.answers[name] for token in tokens]

    plain = say("plain-0", (), 0)
    first = plain[0]
    assert say("ends-0", (first,), 0) == [first]
    for least in (1, 3):
        found = say(f"least{least}-0", (first,), least)
        assert first not in found[:least]
        # What comes instead is what a ban of that token alone would bring.
        banned = SamplingParams(temperature=0.0, logit_bias=((first, -1e6),))
        served.tick(Submit(f"banned{least}-0", pack_ids(PROMPT), least, banned))
        served.run()
        steps = served.answers[f"banned{least}-0"]
        assert found[:least] == [token for tokens, _ in steps for token in tokens]
    # Whoever comes next in the slot is held to nothing.
    assert say("again-0", (first,), 0) == [first]
    assert say("whole-0", (), 5) == plain
