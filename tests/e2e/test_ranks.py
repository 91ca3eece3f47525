"""Two and four ranks as one machine: the same operations everywhere, and one named end."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request

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
    assert random_load(server, requests, seed=world) > requests / 3
    assert server.stop() == 0
    assert f"op streams of {world} ranks: identical" in server.log
    streams = [server.operations(rank) for rank in range(world)]
    assert streams[0].count(b"\n") > requests
    assert all(stream == streams[0] for stream in streams)


def test_one_process_a_rank_serves_too(serve):
    server = serve(world_size=2, placement="inline")
    assert len(server.family()) == 2
    with complete(server, max_tokens=9) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 9
    assert server.stop() == 0
    assert "op streams of 2 ranks: identical" in server.log
