"""Two and four ranks as one machine: the same operations everywhere, and one named end."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest

END_S = 3.0
SLACK_S = 1.0
"""What a loaded test machine may add to the time in which a world ends."""

VOCABULARY = 400
LINES = [
    {"ids": [(7 * line + 3 * k) % VOCABULARY for k in range(40)], "per_step": [1, 3, 2]}
    for line in range(16)
]


def complete(server, **fields):
    body = {"model": server.model(), "prompt": "go", "ignore_eos": True} | fields
    request = urllib.request.Request(
        server.base + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=60)


def random_load(server, requests, seed, workers=8):
    """`requests` completions by `workers` clients, of whom some hang up early; how many ended."""
    rng = random.Random(seed)
    plans = [
        {
            "prompt": ["x " * rng.randint(1, 300) for _ in range(rng.choice([1, 1, 1, 2]))],
            "max_tokens": rng.choice([1, 5, 30]),
            "seed": rng.randrange(2**32),
            "temperature": rng.choice([0, 1.0]),
            "stream": rng.random() < 0.5,
        }
        for _ in range(requests)
    ]
    hang_up = [rng.random() < 0.2 for _ in plans]
    ended, refused = [], []
    turn = iter(enumerate(plans))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                number, plan = next(turn, (None, None))
            if plan is None:
                return
            try:
                with complete(server, **plan) as answer:
                    if hang_up[number] and plan["stream"]:
                        answer.readline()
                        continue
                    answer.read()
                ended.append(number)
            except urllib.error.HTTPError as error:
                refused.append(error.code)
                error.close()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {503}
    return len(ended)


@pytest.mark.parametrize(
    ("world", "requests"),
    [
        pytest.param(2, 60),
        pytest.param(2, 500, marks=pytest.mark.long),
        pytest.param(4, 500, marks=pytest.mark.long),
    ],
)
def test_all_ranks_do_the_same_under_a_random_load(serve, world, requests):
    server = serve(script=LINES, world_size=world, step_ms=1, queue_limit=4)
    shown = {process.name() for process in server.family()}
    roles = [f"dgpp{rank}-{role}" for rank in range(world) for role in ("engine", "scheduler")]
    assert shown >= {*roles, "dgpp0-tokenizer", "dgpp1-rank"}
    assert random_load(server, requests, seed=world) > requests / 3
    assert server.stop() == 0
    assert f"op streams of {world} ranks: identical" in server.log
    streams = [server.operations(rank) for rank in range(world)]
    assert streams[0].count(b"\n") > requests
    assert all(stream == streams[0] for stream in streams)


DRAWN = {"temperature": 1.0, "seed": 5}


@pytest.fixture(scope="module")
def undisturbed(serve_module):
    """What a world of one process a rank that served to its end answered, and its log."""
    server = serve_module(world_size=2, placement="inline")
    assert len(server.family()) == 2
    with complete(server, max_tokens=1000, **DRAWN) as answer:
        found = json.load(answer)
    assert found["usage"]["completion_tokens"] == 1000
    assert server.stop() == 0
    return found["choices"][0]["text"], server.log


def test_one_process_a_rank_serves_too(undisturbed):
    assert "op streams of 2 ranks: identical" in undisturbed[1]


def open_stream(server):
    """A stream that would run for long; the response, after its first event."""
    answer = complete(server, max_tokens=4000, stream=True, **DRAWN)
    return answer, answer.readline()


def texts(events):
    """What a stream's events say, in order."""
    lines = [line[6:] for line in events.decode().splitlines() if line.startswith("data: {")]
    found = [json.loads(line) for line in lines]
    return "".join(event["choices"][0]["text"] for event in found if event.get("choices"))


RANK_0 = ("main", "engine", "sampler", "scheduler", "tokenizer", "http")
OTHERS = ("supervisor", "engine", "sampler", "scheduler")
QUICK = {(1, "engine", "SIGKILL"), (1, "supervisor", "SIGSTOP"), (0, "main", "SIGSTOP")}
"""What every change is tried with; the others are long."""


def drills():
    found = []
    for rank, role in [*((0, r) for r in RANK_0), *((1, r) for r in OTHERS)]:
        for how in ("SIGKILL", "SIGSTOP"):
            marks = () if (rank, role, how) in QUICK else pytest.mark.long
            found.append(pytest.param(rank, role, how, marks=marks, id=f"{role}-{rank}-{how}"))
    return found


@pytest.mark.parametrize(("rank", "role", "how"), drills())
def test_the_end_of_any_process_of_any_rank_ends_the_world(serve, undisturbed, rank, role, how):
    server = serve(world_size=2, step_ms=5)
    stream, first = open_stream(server)
    family = server.family()
    victim = psutil.Process(server.process.pid) if role == "main" else server.actor(role, rank)
    time.sleep(0.2)
    began = time.monotonic()
    os.kill(victim.pid, getattr(signal, how))
    status = server.process.wait(10)
    while [p for p in family if is_alive(p)]:
        assert time.monotonic() - began < END_S + SLACK_S, server.log
        time.sleep(0.01)
    took = time.monotonic() - began
    assert status == (-signal.SIGKILL if (role, how) == ("main", "SIGKILL") else 2), server.log
    check_log(server.log, rank, role, how)
    try:
        tail = first + stream.read()
    except http.client.IncompleteRead as broken:
        tail = first + broken.partial
    if role != "http" and (role, how) != ("main", "SIGKILL"):
        assert b'"code":"engine_failure"' in tail
        assert tail.endswith(b"data: [DONE]\n\n")
        assert f"rank {rank}".encode() in tail
    print(f"{role} of rank {rank}, {how}: gone after {took:.2f} s")
    said = texts(tail)
    assert said
    # Asked again, it is said again.
    assert undisturbed[0].startswith(said)


@pytest.mark.long
def test_of_two_faults_at_once_the_one_that_ended_the_world_is_told(serve):
    server = serve(world_size=2, step_ms=5)
    os.kill(server.actor("scheduler", 0).pid, signal.SIGSTOP)
    os.kill(server.actor("scheduler", 1).pid, signal.SIGKILL)
    assert server.process.wait(10) == 2
    assert "main[0] rank 1: scheduler of rank 1 was killed by signal 9" in server.log


def is_alive(process):
    """An orphan that ended may stay a zombie: what adopts it need not be quick."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_log(log, rank, role, how):
    """Both ranks name what happened, and each ends with its own status."""
    lines = log.splitlines()
    of_main = {r: [line for line in lines if f"main[{r}]" in line] for r in (0, 1)}
    if role == "main":
        # Its own log ends with it, or it wakes to find its actors gone.
        assert any("rank 0 is gone" in line or "rank 0 ended" in line for line in lines), log
        if how == "SIGSTOP":
            assert "main[0] supervisor of rank 0 stopped responding: a signal has stopped it" in log
            assert any(
                "rank 0 ended the world: supervisor of rank 0" in line for line in of_main[1]
            )
        return
    who = f"{role} of rank {rank}" if role != "supervisor" else "rank 1"
    named = [line for line in of_main[0] if "ERROR" in line]
    assert any(who in line or f"rank {rank}" in line for line in named), log
    if role == "supervisor":
        return
    what = "was killed by signal 9" if how == "SIGKILL" else "stopped responding"
    assert any(f"{role} of rank {rank} {what}" in line for line in lines), log
    assert any("exit_status=" + ("2" if rank else "3") in line for line in of_main[1]), log
