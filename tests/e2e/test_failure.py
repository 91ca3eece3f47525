"""Whatever dies or freezes, the world ends: named, in time, and clients are told."""

from __future__ import annotations

import json
import signal
import time
import urllib.request

import psutil
import pytest

ROLES = ("engine", "sampler", "scheduler", "tokenizer", "http")
END_S = 3.0
SLACK_S = 1.0
"""What a loaded test machine may add to the time in which a world ends."""


def open_stream(server):
    """A stream that would run for ever; the response, after its first event."""
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": "go"}],
        "stream": True,
        "max_tokens": 4000,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        server.base + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer = urllib.request.urlopen(request, timeout=30)
    answer.readline()
    return answer


def ends():
    """Every actor killed, and stopped; the suite stops two, one in the path of tokens."""
    for role in ROLES:
        yield pytest.param(role, signal.SIGKILL, id=f"{role}-killed")
        usual = () if role in ("engine", "http") else (pytest.mark.long,)
        yield pytest.param(role, signal.SIGSTOP, id=f"{role}-stopped", marks=usual)


@pytest.mark.parametrize(("role", "how"), list(ends()))
def test_the_end_of_any_actor_ends_the_world(serve, role, how):
    server = serve(step_ms=5)
    stream = open_stream(server)
    family = server.family()
    began = time.monotonic()
    server.actor(role).send_signal(how)
    assert server.process.wait(10) == 2
    assert time.monotonic() - began < END_S + SLACK_S
    assert f"{role} of rank 0" in server.log
    _, alive = psutil.wait_procs(family, timeout=1)
    assert not alive
    if role != "http":
        tail = stream.read().decode()
        assert '"code":"engine_failure"' in tail
        assert tail.endswith("data: [DONE]\n\n")


def test_a_killed_supervisor_leaves_nobody(serve):
    server = serve()
    family = server.family()
    server.process.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive


def wait(happens):
    deadline = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interrupt_lets_streams_finish(serve):
    server = serve(step_ms=20, flags=("--drain-grace-s", "0.6"))

    def health(path):
        status, body = server.get(path)
        return status, json.loads(body)["status"]

    body = {
        "model": server.model(),
        "prompt": "go",
        "max_tokens": 100,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    late = {"model": server.model(), "prompt": "go", "max_tokens": 1}
    request = urllib.request.Request(
        server.base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "x/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        server.process.send_signal(signal.SIGINT)
        # Load balancers hear of it before clients are refused.
        wait(lambda: health("/health") == (503, "leaving"))
        assert server.post("/v1/completions", late)[0] == 200
        wait(lambda: health("/health/ready") == (503, "draining"))
        status, error = server.post("/v1/completions", body)
        assert status == 503
        assert error["error"]["code"] == "server_shutdown"
        assert health("/health/live") == (200, "draining")
        tail = answer.read().decode()
    assert '"completion_tokens":100' in tail
    assert server.process.wait(10) == 0


def test_the_drain_timeout_ends_streams_with_an_error_event(serve):
    server = serve(placement="inline", step_ms=20, drain_timeout_s=1.0)
    stream = open_stream(server)
    server.process.send_signal(signal.SIGTERM)
    tail = stream.read().decode()
    assert '"code":"server_shutdown"' in tail
    assert tail.endswith("data: [DONE]\n\n")
    assert server.process.wait(10) == 0


def test_a_second_interrupt_ends_at_once(serve):
    server = serve(step_ms=20)
    stream = open_stream(server)
    server.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(3) == 2
    stream.close()


def test_one_process_serves_and_ends_too(serve):
    server = serve(placement="inline")
    assert len(server.family()) == 1
    body = {"model": server.model(), "prompt": "go", "max_tokens": 4, "ignore_eos": True}
    status, answer = server.post("/v1/completions", body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 4
    assert server.stop() == 0


def test_a_taken_port_is_named(serve):
    first = serve(placement="inline")
    second = serve(ready=False, flags=("--port", str(first.port)))
    assert second.process.wait(20) == 1
    assert f"http.port: cannot listen on 127.0.0.1:{first.port}" in second.log


def test_what_is_wrong_is_named_before_anything_starts(serve):
    wrong = {
        "engine.max_concurrency": {"flags": ("--max-concurrency", "99")},
        "kv_capacity": {"flags": ("--set", "engine.kv_capasity=5")},
        "not supported yet: engine.mtp": {"flags": ("--mtp",)},
        "/nonexistent/lines": {"flags": ("--script", "/nonexistent/lines")},
        "nobody/nothing": {"model": "nobody/nothing"},
    }
    servers = {said: serve(ready=False, **told) for said, told in wrong.items()}
    for said, server in servers.items():
        assert server.process.wait(20) == 1, server.log
        assert said in server.log
        assert "Traceback" not in server.log
