"""Measure the path around the model: sampler to client socket, and tokens per second.

Starts `dgpp run` with the scripted engine, streams from it over loopback, and prints one JSON
object. The server says when the sampler committed a step (`x-dgpp-stamps: 1` puts the monotonic
clock into an event comment); this client reads the same clock when the bytes arrive.

    python scripts/bench_host.py latency --model DIR      one stream, one token each step_ms
    python scripts/bench_host.py throughput --model DIR   16 streams, as fast as they come
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

STAMP = b": committed "


@contextlib.contextmanager
def serving(model: str, streams: int, step_ms: float) -> Iterator[int]:
    """A server with the scripted engine on a free port; the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = {
        "backend": "scripted",
        "step_ms": step_ms,
        "max_concurrency": streams,
        "kv_capacity": streams * 4096,
        "stats_interval_s": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "scripted.json"
        config.write_text(json.dumps({"model": model, "world_size": 1, "engine": engine}))
        server = subprocess.Popen(
            [sys.executable, "-m", "dgpp", "run", str(config), "--port", str(port)],
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_ready(port, server)
            yield port
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)


def wait_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server exited with status {server.returncode}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise SystemExit("the server was not ready in 60 s")


async def stream(port: int, model: str, tokens: int, *, stamps: bool) -> tuple[int, list[float]]:
    """Tokens received, and the age of each event in µs where `stamps` asks for it."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "go"}],
            "stream": True,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    )
    if stamps:
        head += "x-dgpp-stamps: 1\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    ages: list[float] = []
    tail = b""
    completed = 0
    while b"data: [DONE]" not in tail:
        data = await reader.read(1 << 16)
        now = time.monotonic_ns()
        if not data:
            raise SystemExit(f"the stream broke off: {tail[-300:]!r}")
        tail += data
        at = 0
        while (at := tail.find(STAMP, at)) >= 0 and (end := tail.find(b"\n", at)) >= 0:
            ages.append((now - int(tail[at + len(STAMP) : end])) / 1e3)
            at = end
        cut = tail.rfind(b"\n\n")
        if cut >= 0 and (usage := tail.find(b'"completion_tokens":')) >= 0:
            completed = int(tail[usage + 20 :].split(b",")[0].split(b"}")[0])
        if cut >= 0 and b"data: [DONE]" not in tail:
            tail = tail[cut:]
    writer.close()
    return completed, ages


async def measure(
    port: int, model: str, streams: int, tokens: int, *, stamps: bool
) -> dict[str, float]:
    await stream(port, model, 16, stamps=False)
    began = time.perf_counter()
    results = await asyncio.gather(
        *(stream(port, model, tokens, stamps=stamps) for _ in range(streams))
    )
    seconds = time.perf_counter() - began
    received = sum(count for count, _ in results)
    figures: dict[str, float] = {
        "streams": streams,
        "tokens": received,
        "tokens_per_second": round(received / seconds, 1),
    }
    if ages := sorted(age for _, some in results for age in some):
        figures["sampler_to_socket_us_p50"] = round(statistics.median(ages), 1)
        figures["sampler_to_socket_us_p99"] = round(ages[int(len(ages) * 0.99)], 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["latency", "throughput"])
    parser.add_argument("--model", required=True, help="directory of a model with a tokenizer")
    parser.add_argument("--tokens", type=int, default=1000)
    options = parser.parse_args()
    latency = options.what == "latency"
    streams, step_ms = (1, 4.0) if latency else (16, 0.0)
    with serving(options.model, streams, step_ms) as port:
        figures = asyncio.run(measure(port, options.model, streams, options.tokens, stamps=latency))
    print(json.dumps({"measured": options.what, **figures}))


if __name__ == "__main__":
    main()
