"""A tiny checkpoint served from the GPU: the whole path, alike alone and in company."""

from __future__ import annotations

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

for needed in ("aiohttp", "psutil", "uvloop"):
    pytest.importorskip(needed, reason=f"the server needs {needed}, which is not installed")

from serving import ROOT, TINY, Starter  # noqa: E402 - after the check that it can load

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(cuda, tmp_path_factory):
    model = tmp_path_factory.mktemp("model")
    for source in (TINY, ROOT / "tests" / "fixtures" / "glm-4.7-bf16"):
        for file in source.iterdir():
            shutil.copy(file, model / file.name)
    starter = Starter(tmp_path_factory.mktemp("servers"))
    yield starter(model=model, backend="cuda", max_concurrency=8, kv_capacity=8192)
    starter.close()


def ask(server, text, **more):
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
    }
    status, answer = server.post(CHAT, body | more)
    assert status == 200, answer
    return answer["choices"][0]


def test_greedy_answers_and_their_logprobs_are_the_same_alone_and_eight_at_once(server):
    texts = [f"question {number} " * (1 + 9 * number) for number in range(8)]
    alone = [ask(server, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: ask(server, text), texts))
    assert together == alone
    assert len({choice["message"]["content"] for choice in alone}) == 8


def test_seeds_penalties_and_bias_work_on_the_device(server):
    sampled = {"temperature": 1.0, "seed": 7, "top_p": 0.9}
    assert ask(server, "again", **sampled) == ask(server, "again", **sampled)
    biased = ask(server, "again", logit_bias={"65": 100}, max_tokens=3)
    assert len({entry["token"] for entry in biased["logprobs"]["content"]}) == 1
    plain = ask(server, "again", logprobs=False)["message"]["content"]
    assert (
        ask(server, "again", frequency_penalty=2.0, logprobs=False)["message"]["content"] != plain
    )


def test_the_log_names_the_device_and_the_end_of_an_engine_ends_the_world(server):
    assert "cuda" in server.log
    server.actor("engine").send_signal(signal.SIGKILL)
    assert server.process.wait(10) == 2
    assert "engine of rank 0 was killed by signal 9" in server.log
