"""What people who tail the log, scrape the metrics and hold idle streams get to see."""

from __future__ import annotations

import json
import threading
import time
import urllib.request

SECRET = "Zanzibar"


def ask(server, **more):
    body = {
        "model": server.model(),
        "messages": [{"role": "user", "content": f"tell me of {SECRET}"}],
        "max_tokens": 12,
        "ignore_eos": True,
    }
    return server.post("/v1/chat/completions", body | more)


def test_the_log_tells_start_admission_retirement_and_rates_but_no_text(serve):
    server = serve(placement="inline", stats_interval_s=0.3, step_ms=5)
    status, answer = ask(server, **{f"my {SECRET}": 1})
    assert status == 200
    time.sleep(0.5)
    assert server.stop() == 0
    log = server.log
    request = answer["id"]
    for said in (
        "READY — http://127.0.0.1:",
        "engine scripted ",
        f"{request}-0 admitted to slot 0: prompt ",
        f"{request}-0 retired (length): 12 tok in ",
        "stats: rank 0 | ",
        "unknown fields ignored",
        "draining up to 30 s",
        "stopped exit_status=0",
    ):
        assert said in log, log
    assert SECRET not in log
    retired = next(line for line in log.splitlines() if "retired" in line)
    for part in ("queue ", "prefill ", " tok/s", "ms/tok"):
        assert part in retired


def test_json_lines_hold_the_same_as_fields(serve):
    server = serve(flags=("--log-json",))
    _, answer = ask(server)
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    assert {"ts", "level", "role", "rank", "msg"} <= set.intersection(*map(set, lines))
    retired = next(line for line in lines if line.get("reason") == "length")
    assert retired["id"] == answer["id"] + "-0"
    assert retired["tokens"] == 12
    assert retired["role"] == "scheduler"


def test_metrics_count_what_happened(serve):
    server = serve(placement="inline")
    for _ in range(3):
        timings = ask(server, n=2)[1]["timings"]
        assert timings["predicted_n"] == 24
        assert 0 < timings["prompt_ms"] < 5000
        assert timings["predicted_per_second"] > 1
    server.post("/v1/chat/completions", b"{")
    found = server.metrics()
    assert found["service"]["requests_total"] == 4
    assert found["service"]["rejects_bad"] == 1
    assert found["scheduler"]["tokens_generated"] == 3 * 2 * 12
    assert found["scheduler"]["prompts_prefilled"] == 6
    text = server.get("/metrics/prometheus")[1].decode()
    scrape = urllib.request.Request(f"{server.base}/metrics")
    scrape.add_header("Accept", "application/openmetrics-text;q=0.6,text/plain;q=0.5,*/*;q=0.1")
    with urllib.request.urlopen(scrape, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert answer.read().splitlines()[:1] == [text.splitlines()[0].encode()]
    assert server.get("/prometheus/metrics")[1].startswith(text.splitlines()[0].encode())
    name = server.model()
    assert f'dgpp_generation_tokens_total{{model_name="{name}"}} 72.0' in text
    assert f'dgpp_request_finished_total{{model_name="{name}",reason="length"}} 6.0' in text
    assert f'dgpp_e2e_request_latency_seconds_count{{model_name="{name}"}} 3.0' in text


def test_metrics_tell_a_prompt_that_is_being_read(serve):
    server = serve(
        placement="inline",
        step_ms=150,
        kv_capacity=65536,
        flags=("--metrics-compat", "vllm"),
    )
    long = {"messages": [{"role": "user", "content": "a long story " * 1200}], "max_tokens": 2}
    thread = threading.Thread(target=ask, args=(server,), kwargs=long)
    thread.start()
    seen = []
    while thread.is_alive():
        prefill = server.metrics()["prefill"]
        seen += [(prefill, one) for one in prefill["requests"]]
        time.sleep(0.05)
    thread.join()
    assert len({one["processed_tokens"] for _, one in seen}) > 2
    for prefill, one in seen:
        assert one["id"].startswith("chatcmpl-")
        assert one["slot"] == 0
        assert one["processed_tokens"] + one["remaining_tokens"] == one["prompt_tokens"]
        assert one["computed_tokens"] == one["processed_tokens"] - one["cached_tokens"]
        assert prefill["remaining_tokens"] == one["remaining_tokens"]
        assert 0 <= one["elapsed_ms"] < 60_000
    deadline = time.monotonic() + 5
    # The client is told before the scheduler.
    while (idle := server.metrics())["scheduler"]["step_age_ms"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert idle["scheduler"]["step_age_ms"] == 0
    assert idle["prefill"]["requests"] == []
    text = server.get("/metrics/prometheus")[1].decode()
    assert f'vllm:generation_tokens_total{{model_name="{server.model()}"}} 2.0' in text


def test_a_silent_stream_is_kept_alive(serve):
    server = serve(placement="inline", step_ms=2300)
    body = {
        "model": server.model(),
        "prompt": "x",
        "max_tokens": 2,
        "ignore_eos": True,
        "stream": True,
        "sse_ping_interval": 1,
    }
    request = urllib.request.Request(
        server.base + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "x/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read().decode()
    assert text.count(": keep-alive\n\n") >= 2
    assert text.endswith("data: [DONE]\n\n")


def test_a_long_prompt_on_its_way_in_holds_up_no_stream(serve):
    server = serve(step_ms=5, kv_capacity=1_000_000)
    body = {"model": server.model(), "prompt": "x", "max_tokens": 400, "ignore_eos": True}
    streamed = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(server.base + "/v1/completions", streamed)
    gaps = []
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()
        other = urllib.request.Request(
            server.base + "/v1/completions",
            json.dumps(body | {"prompt": "long words " * 60_000, "max_tokens": 1}).encode(),
        )
        sender = threading.Thread(target=lambda: urllib.request.urlopen(other, timeout=60).read())
        sender.start()
        last = time.monotonic()
        for line in answer:
            if line.startswith(b"data: {"):
                now = time.monotonic()
                gaps.append(now - last)
                last = now
        sender.join()
    # A step takes 5 ms; the rest is what a busy machine and one long prompt may add.
    assert sorted(gaps)[int(len(gaps) * 0.99)] < 0.1


def test_metrics_show_what_waits_and_what_is_read_while_a_step_runs(serve):
    server = serve(placement="inline", step_ms=400, max_concurrency=1)
    short = {"max_tokens": 2}
    threads = [threading.Thread(target=ask, args=(server,), kwargs=short) for _ in range(2)]
    seen = set()
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 5
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        levels = server.metrics()["scheduler"]
        busy = levels["prefilling"] + levels["active"]
        seen.add((busy, levels["queued"]))
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert (1, 1) in seen
    assert server.metrics()["scheduler"]["active"] == 0
