"""A real model shared out to the ranks of this host: the answers of one rank, and one named end."""

from __future__ import annotations

import shutil
import signal
import threading
import time

import pytest
from serving import ROOT, TINY

# The first server may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

CHAT = "/v1/chat/completions"
END_S = 3.0
SLACK_S = 2.0
"""What a loaded test machine may add to the time in which a world ends."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for source in (TINY, ROOT / "tests" / "fixtures" / "glm-4.7-bf16"):
        for file in source.iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def ask(server, text: str, **more):
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
    }
    status, answer = server.post(CHAT, body | more)
    assert status == 200, answer
    return answer["choices"][0]


def texts_and_logprobs(choice):
    entries = choice["logprobs"]["content"]
    return [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]


REQUESTS = [
    {"text": "first"},
    {"text": "second " * 40},
    {"text": "drawn", "temperature": 0.8, "seed": 5},
    {"text": "cut", "temperature": 1.2, "seed": 6, "top_p": 0.9, "top_k": 40},
    {"text": "biased", "logit_bias": {"300": 4.0}, "frequency_penalty": 0.5},
]


def test_two_ranks_answer_as_one_does(serve, model):
    """Sums of two parts round differently: logprobs are near, tokens equal (no margin here is
    within the difference)."""
    engine = {"max_concurrency": 4, "kv_capacity": 4096, "threads": 1, "backend": "cpu"}
    engine |= {"placement": "inline"}
    alone = serve(model=model, **engine)
    wanted = [ask(alone, **request) for request in REQUESTS]
    assert alone.stop() == 0
    world = serve(model=model, world_size=2, embed_sharding="vocab", **engine)
    for request, choice in zip(REQUESTS, wanted, strict=True):
        tokens, logprobs = texts_and_logprobs(ask(world, **request))
        assert tokens == texts_and_logprobs(choice)[0], request
        assert logprobs == pytest.approx(texts_and_logprobs(choice)[1], abs=1e-3)
    assert "collective shm: rank 0 of 2" in world.log
    assert "collective shm: rank 1 of 2" in world.log
    assert world.stop() == 0
    assert "op streams of 2 ranks: identical" in world.log


# tests/e2e/test_ranks_cpu.py does the same with another fault in each run.
@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_stops_amid_a_sum_is_named(serve, model, fault):
    world = serve(model=model, world_size=2, backend="cpu", threads=1, kv_capacity=4096)
    streaming = threading.Thread(
        target=lambda: world.post(CHAT, {
            "model": "m", "messages": [{"role": "user", "content": "go"}], "max_tokens": 2000,
            "ignore_eos": True,
        })
    )  # fmt: skip
    streaming.start()
    time.sleep(1.0)
    began = time.monotonic()
    world.actor("engine", rank=1).send_signal(fault)
    assert world.process.wait(END_S + SLACK_S + 5) == 2
    assert time.monotonic() - began < END_S + SLACK_S
    streaming.join(10)
    assert "rank 1" in world.log
