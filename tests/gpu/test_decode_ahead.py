"""Decode ahead of verdicts on the GPU: recorded steps give eager bits, and the device's own picks
are the sampler's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_drive import Served

from dgpp.engine.model_engine import ModelEngine
from dgpp.sample.params import SamplingParams
from dgpp.sample.tables import allocate_tables
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import FED, DecodeRow, Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIMITS = EngineLimits(
    slots=16,
    vocab_size=512,
    position_ceiling=4608,
    block_tokens=64,
    blocks=16 * 8,
    chunk_align=64,
    chunk_limit=512,
    candidates=128,
)
KINDS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.5, top_k=20, min_p=0.01),
    SamplingParams(temperature=5.0),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.95, logit_bias=((7, 3.0), (9, -100.0))),
]


def engine_of(name: str, depth: int) -> ModelEngine:
    import msgspec

    limits = msgspec.structs.replace(LIMITS, depth=depth)
    engine = ModelEngine(FIXTURES / name, limits, 1, backend="cuda")
    engine.warm_up()
    if depth:
        engine.record()
        print(engine.notes())
    return engine


@pytest.fixture(scope="module", params=["glm-4.7-bf16", "glm-4.7-nvfp4"])
def engines(request, cuda: None) -> tuple[ModelEngine, ModelEngine]:
    """One step at a time and eager; ahead of verdicts and replayed."""
    return engine_of(request.param, 0), engine_of(request.param, 1)


def requests() -> list[Submit]:
    rng = np.random.default_rng(3)
    return [
        Submit(
            f"r{number}-0",
            pack_ids(rng.integers(0, LIMITS.vocab_size, 5 + 23 * number)),
            20 + 7 * number % 40,
            KINDS[number % len(KINDS)],
            seed=number * 1234567,
            stop_ids=(11, 12, 13, 14),
        )
        for number in range(20)
    ]


def test_answers_are_those_of_one_step_at_a_time(engines) -> None:
    plain, ahead = (Served(engine) for engine in engines)
    for number, submit in enumerate(requests()):
        for served in (plain, ahead):
            served.tick(submit, *([] if number % 3 else [replaced(submit, number)]))
    plain.run()
    ahead.run()
    assert ahead.answers == plain.answers
    assert ahead.replayed > 0 == plain.replayed
    print(f"{ahead.decided} picks decided, {ahead.undecided} not, {ahead.asked} rows in full")
    assert ahead.decided > 4 * ahead.undecided


def replaced(submit: Submit, number: int) -> Submit:
    import msgspec

    return msgspec.structs.replace(submit, id=f"twin{number}-0", seed=number)


def test_a_penalised_request_makes_steps_wait_and_changes_nothing(engines) -> None:
    slow = SamplingParams(temperature=1.0, presence_penalty=0.5)
    found = []
    for engine in engines:
        served = Served(engine)
        first, second = requests()[1:3]
        served.tick(first, Submit("slow-0", second.prompt, 12, slow, seed=5))
        served.run()
        found.append(served.answers)
    assert found[0] == found[1]


@pytest.mark.parametrize("length", [70, 1030])
def test_replays_are_bitwise_eager_for_every_number_of_rows(engines, length: int) -> None:
    class Watcher:
        """An engine that is watched runs eagerly."""

        def hidden(self, index, rows, x):
            pass

        def routed(self, layer, rows, routes):
            pass

    engine = engines[1]
    tables = allocate_tables(LIMITS.slots, LIMITS.vocab_size)
    each = LIMITS.blocks // LIMITS.slots
    prompt = np.random.default_rng(4).integers(0, LIMITS.vocab_size, length % 500)
    opens = tuple(
        Open(s, Submit(f"s{s}-0", pack_ids(prompt[s:]), 9, KINDS[0]),
             tuple(range(s * each, (s + 1) * each)))
        for s in range(16)
    )  # fmt: skip
    # Far positions read blocks that nobody writes (each slot writes its first alone): the same
    # garbage, finite, for both.
    if length > 1000:
        unwritten = tuple(block for block in range(LIMITS.blocks) if block % each)
        opens = (Open(0, opens[0].request, (0, *unwritten[:71])), *opens[1:])
    step = 10_000
    engine.launch(Plan(step, opens=opens), tables)
    engine.collect(step)
    for s in range(16):
        step += 1
        count = len(prompt) - s
        chunk = PrefillChunk(s, 0, count, last=True)
        engine.launch(Plan(step, prefills=(chunk,)), tables)
        engine.collect(step)
    for count in range(1, 17):
        place = length if length > 1000 else None
        rows = tuple(
            DecodeRow(s, place if s == 0 and place else len(prompt) - s, 5 + s)
            for s in range(count)
        )
        bits = []
        for watcher in (None, Watcher()):
            step += 1
            engine.observer = watcher
            engine.launch(Plan(step, decodes=rows), tables)
            found = engine.collect(step)
            assert engine.trace.replayed == (0 if watcher else count)
            bits.append((engine.full_rows(step, list(range(count))), found.picks))
        engine.observer = None
        np.testing.assert_array_equal(bits[0][0], bits[1][0])
        np.testing.assert_array_equal(bits[0][1], bits[1][1])
        assert (bits[0][1] == bits[0][0].argmax(axis=1)).all()
    engine.launch(Plan(step + 1, closes=tuple(range(16))), tables)
    engine.collect(step + 1)


def test_rows_in_full_of_a_step_outlive_the_launch_of_the_next(engines) -> None:
    engine = engines[1]
    tables = allocate_tables(LIMITS.slots, LIMITS.vocab_size)
    request = Submit("a-0", pack_ids(range(40)), 30, KINDS[0])
    opened = Open(0, request, tuple(range(8)))
    chunk = PrefillChunk(0, 0, 40, last=True)
    engine.launch(Plan(1, opens=(opened,), prefills=(chunk,)), tables)
    engine.launch(Plan(2, decodes=(DecodeRow(0, 40, FED),)), tables)
    first = engine.collect(1)
    row = engine.full_rows(1, [0])[0]
    assert first.picks[0] == row.argmax()
    np.testing.assert_array_equal(row[first.ids[0]], first.logits[0])
    second = engine.collect(2)
    engine.launch(Plan(3, decodes=(DecodeRow(0, 40, int(first.picks[0])),)), tables)
    again = engine.collect(3)
    np.testing.assert_array_equal(again.logits, second.logits)
    engine.launch(Plan(4, closes=(0,)), tables)
    engine.collect(4)


FAILING = """
import os, sys
sys.path[:0] = {tests!r}
from test_decode_ahead import engine_of, LIMITS
from dgpp.sample.tables import allocate_tables
from dgpp.sched.plan import Open, Plan, PrefillChunk
from dgpp.sched.request import Submit, pack_ids
from kernels_numba.gpu.errors import CudaError
import cupy
engine = engine_of("glm-4.7-bf16", 1)
tables = allocate_tables(LIMITS.slots, LIMITS.vocab_size)
trap = cupy.RawModule(code='extern "C" __global__ void trap() {{ __trap(); }}').get_function("trap")
with engine.backend._stream:
    trap((1,), (1,), ())
chunk = PrefillChunk(0, 0, 4, last=True)
opened = Open(0, Submit("a-0", pack_ids([1, 2, 3, 4]), 9), (0,))
try:
    engine.launch(Plan(0, opens=(opened,), prefills=(chunk,)), tables)
    engine.collect(0)
except CudaError as error:
    print(error, flush=True)
    # CuPy cannot unload from a device that has failed, and says so for every module.
    os._exit(3)
"""


def test_a_failing_device_is_named(cuda: None) -> None:
    code = FAILING.format(tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 3, done.stderr
    said = done.stdout.splitlines()[-1]
    assert "CUDA device 0 failed while" in said
    assert "step 0" in said
