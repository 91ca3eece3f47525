"""What a client sees of the prefix cache, of deadlines, priorities and a pool that runs out."""

from __future__ import annotations

import json
import threading
import time

TEXT = "to be or not to be that is the question " * 30


def complete(server, prompt=TEXT, **more):
    body = {"model": server.model(), "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    return server.post("/v1/completions", body | more)


def chat(server, **more):
    body = {"model": server.model(), "messages": [{"role": "user", "content": TEXT}]}
    return server.post("/v1/chat/completions", body | {"max_tokens": 4} | more)[1]


def cached(answer) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_seen_before_is_counted_as_cached_once(serve):
    server = serve(placement="inline", prefix_min_tokens=64, stats_interval_s=0.2)
    first = chat(server)
    assert cached(first) == 0
    prompt = first["usage"]["prompt_tokens"]
    again = chat(server, n=3)
    # Blocks of 64; at least one token is read.
    assert cached(again) == (prompt - 1) // 64 * 64 > 0
    assert again["usage"]["prompt_tokens"] == prompt
    assert cached(chat(server, prefix_cache=False)) == 0
    found = server.metrics()["prefix_cache"]
    assert (found["enabled"], found["hits"], found["misses"]) == (True, 3, 1)
    assert found["tokens_saved"] == 3 * cached(again)
    assert found["ttft_hit_count"] == 1
    assert found["ttft_miss_count"] == 2
    text = server.get("/metrics/prometheus")[1].decode()
    name = server.model()
    assert f'dgpp_prefix_cache_hits_total{{model_name="{name}"}} 3.0' in text
    assert f'dgpp_prompt_tokens_cached_total{{model_name="{name}"}} {3.0 * cached(again)}' in text
    assert (
        f'dgpp_time_to_first_token_seconds_count{{model_name="{name}",prefix_cache="hit"}} 1.0'
        in text
    )
    time.sleep(0.4)
    assert server.stop() == 0
    assert "prefix cache: the cache is empty" in server.log
    assert f"({cached(again)} cached)" in server.log
    assert "/4 hit)" in server.log


def test_a_cache_that_is_off_finds_nothing(serve):
    server = serve(placement="inline", prefix_cache_gib=0, prefix_min_tokens=64)
    for _ in range(2):
        assert cached(complete(server)[1]) == 0
    assert server.metrics()["prefix_cache"]["enabled"] is False


def test_a_request_that_takes_longer_than_it_may(serve):
    server = serve(placement="inline", step_ms=40)
    begun = time.monotonic()
    status, answer = complete(server, "hi", max_tokens=500, timeout_s=0.4)
    assert status == 504
    assert answer["error"]["code"] == "request_timeout"
    assert answer["error"]["param"] == "timeout_s"
    assert time.monotonic() - begun < 5
    body = {"model": server.model(), "prompt": "hi", "max_tokens": 500, "ignore_eos": True}
    stream = json.dumps(body | {"timeout_s": 0.4, "stream": True}).encode()
    status, events = server.request("POST", "/v1/completions", stream)
    assert status == 200
    data = [line for line in events.decode().split("\n\n") if line.startswith("data: ")]
    assert len(data) > 2
    assert json.loads(data[-2][6:])["error"]["code"] == "request_timeout"
    assert data[-1] == "data: [DONE]"
    for value in (0, -1, 1e9, "1"):
        status, answer = complete(server, timeout_s=value)
        assert (status, answer["error"]["param"]) == (400, "timeout_s")
    # Both were cancelled in the scheduler too: nothing is left running.
    for _ in range(100):
        if server.metrics()["scheduler"]["active"] == 0:
            break
        time.sleep(0.05)
    assert server.metrics()["scheduler"]["active"] == 0
    assert server.get("/metrics/prometheus")[1].decode().count('reason="cancelled"} 2.0') == 1


def test_who_has_priority_is_served_first(serve):
    server = serve(placement="inline", step_ms=20, max_concurrency=1)
    order = []

    def wait(name, count):
        deadline = time.monotonic() + 10
        while server.metrics()["scheduler"][name] < count:
            assert time.monotonic() < deadline, server.log
            time.sleep(0.01)

    def run(name, **more):
        complete(server, name, **more)
        order.append(name)

    threads = [threading.Thread(target=run, args=("first",), kwargs={"max_tokens": 50})]
    threads[0].start()
    wait("active", 1)
    for waiting, (name, priority) in enumerate((("low", -5), ("usual", 0), ("high", 7)), start=1):
        thread = threading.Thread(target=run, args=(name,), kwargs={"priority": priority})
        thread.start()
        threads.append(thread)
        wait("queued", waiting)
    for thread in threads:
        thread.join()
    assert order == ["first", "high", "usual", "low"]
    assert complete(server, priority=101)[0] == 400


def test_under_grow_more_are_served_at_once_and_one_gives_way_by_name(serve):
    server = serve(
        placement="inline",
        admission="grow",
        admission_window=64,
        kv_capacity=1024,
        step_ms=0.5,
        prefix_cache_gib=0,
    )
    answers = {}

    def run(name, priority):
        answers[name] = complete(server, "a b c", max_tokens=900, priority=priority)[1]

    threads = [threading.Thread(target=run, args=pair) for pair in (("kept", 1), ("shed", 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Whole, either needs 15 of 16 blocks. The one of less priority ends when none is left.
    assert answers["kept"]["usage"]["completion_tokens"] == 900
    assert 100 < answers["shed"]["usage"]["completion_tokens"] < 900
    assert answers["shed"]["choices"][0]["finish_reason"] == "length"
    found = server.metrics()["service"]
    assert found["requests_shed_pool"] == 1
    assert found["reservations_grown"] > 10
    assert server.stop() == 0
    assert "retired (pool_exhausted)" in server.log
