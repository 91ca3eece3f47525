"""One rank's real actors on virtual time: whatever the order of events, each choice ends once,
says what it would have said alone, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from sim_front import Front
from virtual_loop import VirtualLoop

from actors import guidance
from actors.context import run_here
from actors.inline import InlineWorld
from actors.launch import deploy
from actors.messages.http_scheduler import Cancel
from actors.world import topology
from dgpp.config.engine_settings import EngineSettings
from dgpp.config.settings import Settings
from dgpp.sample.params import SamplingParams
from dgpp.serve.request import GenerationRequest
from dgpp.text.codec import TextCodec
from dgpp.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[1] / "fixtures" / "tiny-chat"
TOKENIZER = Tokenizer.load(TINY)
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind"
IDS = TOKENIZER.encode(TEXT)
END = min(TOKENIZER.stop_ids)
SEEDS = 100
LONG_SEEDS = 6000


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """The worlds share what is read of the model's folder: to read it takes a third of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextCodec, "load", cache(TextCodec.load))
        patch.setattr(guidance, "load_grammars", cache(guidance.load_grammars))
        yield


@pytest.fixture(scope="module", params=[0, 1], ids=["depth0", "depth1"])
def boot(request, tmp_path_factory):
    """Steps of several tokens, or plans ahead of verdicts with picks that some steps leave open."""
    script = tmp_path_factory.mktemp("script") / "lines.jsonl"
    how = {"undecided": 6} if request.param else {"per_step": [1, 2, 4]}
    script.write_text(json.dumps({"ids": [*IDS, END], **how}))
    engine = EngineSettings(
        backend="scripted",
        placement="inline",
        script=str(script),
        max_concurrency=3,
        kv_capacity=1024,
        prefix_min_tokens=64,
        queue_limit=6,
        admission_gather_ms=2,
        step_ms=1.0,
        pipeline_depth=request.param,
        stats_interval_s=0.0,
    )
    return deploy(Settings(model=str(TINY), engine=engine), log_json=False).boot


def world_of(boot, loop):
    plan = topology(boot)
    roles = tuple(
        msgspec.structs.replace(role, actor="sim_front:Front") if role.role == "http" else role
        for role in plan.roles
    )
    plan = msgspec.structs.replace(plan, roles=roles)
    return InlineWorld(
        plan,
        {role.role: boot.encode() for role in roles},
        loop=loop,
        clock_ns=loop.clock_ns,
        run_blocking=run_here,
    )


def random_request(rng, number):
    stop = rng.choice([(), (), ("not to",), ("question", "be")])
    return GenerationRequest(
        id=f"r{number}",
        kind="completion",
        model="m",
        prompts=tuple("x " * rng.randint(1, 150) for _ in range(rng.choice([1, 1, 2]))),
        n=rng.choice([1, 1, 1, 2, 3]),
        max_tokens=rng.choice([1, 3, 8, 200]),
        sampling=SamplingParams(
            temperature=rng.choice([0.0, 1.0]), presence_penalty=rng.choice([0.0] * 5 + [0.5])
        ),
        stop=stop,
        stream=True,
        priority=rng.choice([-5, 0, 0, 7]),
    )


def expected(request):
    """(text, finish) of a choice, from the script alone."""
    ids, finish = (IDS, "stop")
    if request.max_tokens <= len(IDS):
        ids, finish = IDS[: request.max_tokens], "length"
    text = TOKENIZER.decode(ids)
    hits = [text.find(stop) for stop in request.stop if stop in text]
    if hits:
        return text[: min(hits)], "stop"
    return text, finish


async def play(world, front, requests, rng):
    for request in requests:
        front.submit(request, seed=1)
        if rng.random() < 0.3:
            asyncio.get_running_loop().call_later(rng.random() * 0.03, front.leave, request.id)
        await asyncio.sleep(rng.random() * 0.01)
    scheduler = world.actors["scheduler"]._scheduler
    for _ in range(10_000):
        await asyncio.sleep(0.005)
        done = sum(
            request.id in front.refused
            or request.id in front.gone
            or all((request.id, k) in front.ends for k in range(request.choices))
            for request in requests
        )
        if done == len(requests) and not scheduler.has_work:
            return
    raise AssertionError(f"{len(requests) - done} requests never ended")


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_random_loads_end_as_they_should(boot, first):
    play_seeds(boot, range(first, first + 10))


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, LONG_SEEDS, 1000))
def test_many_random_loads_end_as_they_should(boot, first):
    play_seeds(boot, range(first, first + 1000))


def play_seeds(boot, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        loop = VirtualLoop(seed)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:
            requests = [random_request(rng, number) for number in range(rng.randint(1, 14))]
            front, world = runner.run(run_world(boot, loop, requests, rng))
        audit(seed, requests, front, world)


async def run_world(boot, loop, requests, rng):
    world = world_of(boot, loop)
    starting = asyncio.ensure_future(world.start())
    await asyncio.wait([starting, world.failure], return_when=asyncio.FIRST_COMPLETED)
    assert not world.failure.done(), world.failure.result()
    front = world.actors["http"]
    assert isinstance(front, Front)
    playing = asyncio.ensure_future(play(world, front, requests, rng))
    await asyncio.wait([playing, world.failure], return_when=asyncio.FIRST_COMPLETED)
    assert not world.failure.done(), world.failure.result()
    playing.result()
    await asyncio.sleep(0.1)
    await world.stop()
    return front, world


def audit(seed, requests, front, world):
    for request in requests:
        for choice in range(request.choices):
            key = (request.id, choice)
            text, finish = expected(request)
            said = front.texts.get(key, "")
            if key in front.ends:
                assert (said, front.ends[key]) == (text, finish), f"seed {seed}, {key}"
            else:
                assert request.id in front.gone or request.id in front.refused, (
                    f"seed {seed}, {key}"
                )
                assert text.startswith(said), f"seed {seed}, {key}"
        if request.id in front.refused:
            assert front.refused[request.id] == "overloaded", f"seed {seed}"
    scheduler = world.actors["scheduler"]
    statistics = scheduler._scheduler.statistics()
    scheduler._scheduler.check()
    assert statistics.blocks_in_use == 0, f"seed {seed}"
    assert statistics.active == statistics.prefilling == statistics.queued == 0, f"seed {seed}"
    assert not scheduler._choices, f"seed {seed}"
    assert not scheduler._report._timelines, f"seed {seed}"
    tokenizer = world.actors["tokenizer"]
    assert not tokenizer._outputs, f"seed {seed}"
    assert not tokenizer._preparing, f"seed {seed}"


def test_a_cancel_that_overtakes_its_submission_is_not_lost(boot):
    async def run(loop):
        world = world_of(boot, loop)
        await world.start()
        front = world.actors["http"]
        front.context.post("http>scheduler", Cancel("r0"))
        await asyncio.sleep(0.01)
        front.submit(random_request(random.Random(0), 0), seed=1)
        await asyncio.sleep(0.2)
        assert not world.actors["scheduler"]._choices
        assert not front.texts
        await world.stop()

    loop = VirtualLoop(1)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run(loop))


def test_a_seed_plays_the_same_again(boot):
    seen = []
    for _ in range(2):
        rng, loop = random.Random(4), VirtualLoop(4)
        with asyncio.Runner(loop_factory=lambda loop=loop: loop) as runner:
            requests = [random_request(rng, number) for number in range(8)]
            front, world = runner.run(run_world(boot, loop, requests, rng))
        seen.append((front.texts, front.ends, world.actors["scheduler"]._scheduler.digest()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_an_engine_that_fails_while_it_is_waited_for_ends_the_world(boot, how, monkeypatch):
    if not boot.limits.depth:
        pytest.skip("at depth 0 nothing is waited for elsewhere")

    async def run(loop):
        world = world_of(boot, loop)
        await world.start()
        engine = world.actors["engine"]
        if how == "raises":
            monkeypatch.setattr(engine._engine, "collect", lambda step: 1 // 0)
        else:
            never = SimpleNamespace(run_in_executor=lambda *call: loop.create_future())
            monkeypatch.setattr(engine.context, "loop", never)
        world.actors["http"].submit(random_request(random.Random(0), 0), seed=1)
        failure = await world.failure
        await world.kill()
        return failure

    loop = VirtualLoop(1)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        failure = runner.run(run(loop))
    named = {
        "raises": "ZeroDivisionError",
        "hangs": "EngineStalledError: engine: a step did not end",
    }
    assert f"engine of rank 0 failed: {named[how]}" in failure.cause
    assert failure.exit_status == 2
