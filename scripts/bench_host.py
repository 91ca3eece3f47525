"""Measure the path around the model: sampler to client socket, and tokens per second.

Starts `dgpp run` with the scripted engine, streams from it over loopback, and prints one JSON
object. The server says when the sampler committed a step (`x-dgpp-stamps: 1` puts the monotonic
clock into an event comment); this client reads the same clock when the bytes arrive.

    python scripts/bench_host.py latency --model DIR      one stream, one token each step_ms
    python scripts/bench_host.py throughput --model DIR   16 streams, as fast as they come
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time

from command_line import Options, ended
from scripted_server import scripted, serving

STAMP = b": committed "


def request(model: str, tokens: int, *, stamps: bool) -> bytes:
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
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    )
    if stamps:
        head += "x-dgpp-stamps: 1\r\n"
    return head.encode() + b"\r\n" + body


def ages_us(port: int, model: str, tokens: int) -> list[float]:
    """Of each event of one stream: µs from the sampler's stamp to the return of `recv`."""
    ages: list[float] = []
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(request(model, tokens, stamps=True))
        while True:
            data = link.recv(1 << 16)
            now = time.monotonic_ns()
            for line in data.split(b"\n"):
                if line.startswith(STAMP):
                    ages.append((now - int(line[len(STAMP) :])) / 1e3)
            if b"data: [DONE]" in data:
                return ages
            if not data:
                raise SystemExit("the stream broke off")


async def receive(port: int, model: str, tokens: int) -> int:
    """Tokens of one stream, as its usage event counts them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(model, tokens, stamps=False))
    tail = b""
    while b"data: [DONE]" not in tail:
        data = await reader.read(1 << 16)
        if not data:
            raise SystemExit(f"the stream broke off: {tail[-300:]!r}")
        tail = (tail + data)[-2000:]
    writer.close()
    usage = tail[tail.rindex(b'"completion_tokens":') + 20 :]
    return int(usage.split(b",")[0])


async def receive_all(port: int, model: str, streams: int, tokens: int) -> dict[str, float]:
    await receive(port, model, 16)
    began = time.perf_counter()
    counts = await asyncio.gather(*(receive(port, model, tokens) for _ in range(streams)))
    seconds = time.perf_counter() - began
    return {
        "streams": streams,
        "tokens": sum(counts),
        "tokens_per_second": round(sum(counts) / seconds, 1),
    }


def latency(port: int, model: str, tokens: int) -> dict[str, float]:
    ages_us(port, model, 16)
    ages = sorted(ages_us(port, model, tokens))
    return {
        "events": len(ages),
        "sampler_to_socket_us_p50": round(statistics.median(ages), 1),
        "sampler_to_socket_us_p99": round(ages[int(len(ages) * 0.99)], 1),
    }


def main() -> None:
    parser = Options(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["latency", "throughput"])
    parser.add_argument("--model", required=True, help="directory of a model with a tokenizer")
    parser.add_number("--tokens", 1000)
    options = parser.parse_args()
    if options.what == "latency":
        with serving(options.model, scripted(1, 4.0)) as port:
            figures = latency(port, options.model, options.tokens)
    else:
        with serving(options.model, scripted(16, 0.0)) as port:
            figures = asyncio.run(receive_all(port, options.model, 16, options.tokens))
    print(json.dumps({"measured": options.what, **figures}))


if __name__ == "__main__":
    ended(main)
