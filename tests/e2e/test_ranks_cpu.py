"""A model shared out to the ranks of one host, computed on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.request

import psutil
import pytest
from serving import ROOT

# The first server may have to compile every kernel.
pytestmark = pytest.mark.timeout(600)

CONFIG = ROOT / "tests" / "fixtures" / "glm-4.7-nvfp4" / "config.json"
END_S = 4.0
"""Three seconds, and what a loaded test machine may add."""


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "sizes.json"
    shutil.copy(CONFIG, file)
    return file


def start(serve, model, **engine):
    sizes = {"kv_capacity": 1024, "threads": 1, "world_size": 2}
    return serve(model=model, backend="cpu", load="dummy", **sizes, **engine)


def answers(server):
    """Greedy and sampled answers to several requests at once."""
    body = {
        "model": server.model(),
        "prompt": [[1, 2, 3], [9, 8, 7, 6, 5], list(range(1, 80))],
        "max_tokens": 8,
        "ignore_eos": True,
        "seed": 3,
    }
    found = []
    for temperature in (0, 1.0):
        status, answer = server.post("/v1/completions", body | {"temperature": temperature})
        assert status == 200
        found += [choice["text"] for choice in answer["choices"]]
    # How likely a prompt was, each rank having the logits of a part of the vocabulary.
    scored = body | {"temperature": 0, "max_tokens": 0, "echo": True, "logprobs": 2}
    status, answer = server.post("/v1/completions", scored)
    assert status == 200
    told = [choice["logprobs"]["token_logprobs"] for choice in answer["choices"]]
    assert [len(values) for values in told] == [3, 5, 79]
    return [*found, told]


def test_two_ranks_agree_on_every_step(serve, model):
    # Random weights are drawn by each rank for its own part, so one rank says something else.
    server = start(serve, model, placement="inline")
    assert server.metrics()["collectives"]["path"] == "shm"
    said = answers(server)
    assert all(said)
    assert answers(server) == said
    metrics = server.metrics()
    done, layers = metrics["collectives"], json.loads(CONFIG.read_text())["num_hidden_layers"]
    # Two sums a layer and one of the embedding's or none; what was read counts once more.
    assert done["all_reduces"] >= 2 * layers * metrics["scheduler"]["decode_steps"] > 0
    assert done["bytes"] > 4 * done["all_reduces"]
    told = server.get("/metrics/prometheus")[1].decode()
    total = done["all_reduces"] + done["all_gathers"] + done["barriers"]
    labels = f'model_name="{server.model()}",path="shm",rank="0"'
    assert f"dgpp_rank_collectives_total{{{labels}}} {total}" in told
    assert done["path"] == "shm"
    assert server.stop() == 0
    assert "op streams of 2 ranks: identical" in server.log
    assert server.operations(0) == server.operations(1) != b""


# tests/e2e/test_ranks.py kills an engine in every run.
@pytest.mark.parametrize("how", [pytest.param("SIGKILL", marks=pytest.mark.long), "SIGSTOP"])
def test_an_engine_that_falls_in_a_collective_ends_the_world(serve, model, how):
    server = start(serve, model)
    family = server.family()
    body = {
        "model": server.model(),
        "prompt": [1, 2, 3],
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
    }
    request = urllib.request.Request(
        server.base + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    stream = urllib.request.urlopen(request, timeout=60)
    stream.readline()
    began = time.monotonic()
    os.kill(server.actor("engine", 1).pid, getattr(signal, how))
    assert server.process.wait(10) == 2
    assert time.monotonic() - began < END_S, server.log
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    tail = stream.read()
    assert b'"code":"engine_failure"' in tail
    assert b"rank 1" in tail
    assert tail.endswith(b"data: [DONE]\n\n")
