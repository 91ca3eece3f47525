"""Ranks that are started one by one, as on nodes of their own; and what keeps them from joining."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from serving import free_ports


@pytest.fixture
def token(tmp_path):
    def make(name, text):
        file = tmp_path / name
        file.write_text(text)
        file.chmod(0o600)
        return str(file)

    return make


def start(serve, rank, port, flags=(), placement="inline", **engine):
    flags = ("--rank", str(rank), "--journal-port", str(port), *flags)
    return serve(ready=False, world_size=2, flags=flags, placement=placement, **engine)


def wait_for(server, text, seconds=30):
    end = time.monotonic() + seconds
    while text not in server.log:
        assert time.monotonic() < end, f"no {text!r} in:\n{server.log}"
        time.sleep(0.05)


def test_ranks_started_apart_join_serve_and_end_together(serve, token):
    port, metrics = free_ports(2)
    file = token("token", "a secret of sixteen or more bytes")
    # The later rank first; it was told something else, and to answer metrics.
    flags = ("--metrics-port", str(metrics))
    engine = {"placement": "processes", "cluster_token_file": file}
    second = start(serve, 1, port, flags, max_concurrency=5, **engine)
    first = start(serve, 0, port, max_concurrency=3, **engine)
    first.wait_ready()
    assert "settings of rank 0 hold: engine.max_concurrency" in second.log
    assert "rank 1 came with other settings and adopts rank 0's" in first.log
    body = {"model": first.model(), "prompt": "go", "max_tokens": 12, "ignore_eos": True}
    assert first.post("/v1/completions", body)[0] == 200
    end = time.monotonic() + 10
    while True:
        # The other rank may lag behind the answer by some ticks.
        url = f"http://127.0.0.1:{metrics}/metrics/prometheus"
        text = urllib.request.urlopen(url).read().decode()
        if samples(text, "dgpp_rank_generation_tokens_total") == {1: 12.0}:
            break
        assert time.monotonic() < end, text
        time.sleep(0.05)
    assert 'dgpp_rank_info{git_sha="' in text
    assert samples(text, "dgpp_rank_ticks_total")[1] >= 12
    # Whichever rank is told to end: it asks rank 0, and all end in order.
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(20) == 0
    assert first.process.wait(20) == 0
    assert "rank 1: was asked to end: draining" in first.log
    assert "op streams of 2 ranks: identical" in first.log
    assert first.operations(0) == second.operations(1) != b""


def samples(text, name):
    """Values of a metric by rank."""
    found = {}
    for line in text.splitlines():
        if line.startswith(name + "{"):
            rank = line.partition('rank="')[2].partition('"')[0]
            found[int(rank)] = float(line.rpartition(" ")[2])
    return found


def test_a_wrong_token_is_named_on_both_sides(serve, token):
    (port,) = free_ports(1)
    good, bad = token("good", "a" * 20), token("bad", "b" * 20)
    second = start(serve, 1, port, cluster_token_file=bad)
    wait_for(second, f"rank 1 looks for rank 0 at 127.0.0.1:{port}")
    first = start(serve, 0, port, cluster_token_file=good, rendezvous_timeout_ms=1500)
    assert second.process.wait(20) == 1
    assert "rank 0 turned rank 1 away: wrong cluster token" in second.log
    assert first.process.wait(20) == 1
    assert "not all ranks came within 1.5 s: joined: none; missing: 1; last turned" in first.log
    assert "Traceback" not in first.log + second.log


def test_a_rank_that_never_comes_and_a_rank_0_that_never_was(serve, token):
    ports = free_ports(2)
    file = token("token", "c" * 20)
    first = start(serve, 0, ports[0], cluster_token_file=file, rendezvous_timeout_ms=500)
    second = start(serve, 1, ports[1], cluster_token_file=file, rendezvous_timeout_ms=500)
    assert first.process.wait(20) == 1
    assert "engine.rendezvous_timeout_ms: not all ranks came within 0.5 s" in first.log
    assert second.process.wait(20) == 1
    assert f"rank 0 was not found at 127.0.0.1:{ports[1]} within 0.5 s" in second.log


def test_what_a_start_needs_is_named_before_anything_loads(serve, token):
    open_file = token("open", "d" * 20)
    Path(open_file).chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = serve(ready=False, world_size=2, flags=("--journal-port", str(port)))
        metrics = serve(ready=False, world_size=2, flags=("--metrics-port", str(port)))
        others = start(serve, 1, 1, cluster_token_file=open_file)
        assert busy.process.wait(20) == 1
        assert f"ports.journal: cannot listen on 127.0.0.1:{port}" in busy.log
        assert metrics.process.wait(20) == 1
        assert f"ports.metrics: cannot listen on 127.0.0.1:{port}" in metrics.log
        assert others.process.wait(20) == 1
        assert "engine.cluster_token_file" in others.log
        assert "others may read it" in others.log
        http = serve(ready=False, flags=("--port", str(port)))
        assert http.process.wait(20) == 1
        assert f"http.port: cannot listen on 127.0.0.1:{port}: Address already in use" in http.log
        # No actor was started for it.
        assert "main[0]" not in http.log


def test_garbage_at_the_journal_is_turned_away(serve):
    (port,) = free_ports(1)
    first = start(serve, 0, port)
    wait_for(first, "engine scripted")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_for(first, "turned away: not a journal frame")
    second = start(serve, 1, port)
    first.wait_ready()
    status, answer = first.request("GET", "/metrics")
    assert (status, json.loads(answer)["service"]["engine_failed"]) == (200, False)
    assert first.stop() == 0
    assert second.process.wait(20) == 0
