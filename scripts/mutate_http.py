"""Thousands of mutated requests against one server: only documented statuses, memory flat.

    .venv/bin/python scripts/mutate_http.py --count 30000 --seed 1

starts a server with the scripted engine, sends `--count` requests made from `--seed`, and says what
came back. Framing, heads, JSON and timing are mutated; some clients go away at any moment.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).parents[1]
DOCUMENTED = frozenset({200, 400, 403, 404, 405, 408, 411, 413, 415, 431, 501, 503, 504, 505})
PATIENCE_S = 20.0
SILENCE_S = 0.15
"""What a request may be left without an answer whose bytes promise more than were sent."""
GROWTH_BYTES = 16 << 20
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
_INTERIM = re.compile(rb"HTTP/1\.1 100 Continue\r\n\r\n")


class Shot(NamedTuple):
    """One connection: `pieces` with `pause_s` between, then `end`: read, half, reset or close.
    `whole`: an answer must come, since the server has all it needs."""

    kind: str
    pieces: tuple[bytes, ...]
    pause_s: float = 0.0
    end: str = "read"
    whole: bool = False


class Maker:
    """Makes requests from a seed for a server of one model."""

    def __init__(self, seed: int, model: str) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self._kinds: list[Callable[[], Shot]] = [
            self.valid,
            self.bytes_mutated,
            self.framed_badly,
            self.head_abused,
            self.other_line,
            self.json_broken,
            self.field_replaced,
            self.field_replaced,
            self.deep,
            self.slow,
            self.leaving,
            self.pipelined,
        ]

    def shot(self) -> Shot:
        return self.rng.choice(self._kinds)()

    def body(self) -> tuple[str, dict[str, Any]]:
        """A path and a body that is right."""
        ask: dict[str, Any] = {"model": self.model, "max_tokens": self.rng.randint(1, 4)}
        messages = [{"role": "user", "content": "hi " * self.rng.randint(1, 20)}]
        stream = {"stream": True} if self.rng.random() < 0.3 else {}
        return self.rng.choice(
            [
                ("/v1/chat/completions", ask | {"messages": messages} | stream),
                ("/v1/completions", ask | {"prompt": "once"} | stream),
                ("/v1/completions", ask | {"prompt": [1, 2, 3], "logprobs": 2}),
                ("/v1/messages", ask | {"messages": messages} | stream),
                ("/v1/responses", {"model": self.model, "input": "hi", "max_output_tokens": 3}),
                ("/tokenize", {"prompt": "some text"}),
                ("/detokenize", {"tokens": [1, 2, 3]}),
            ]
        )

    def request(self, path: str, body: bytes, *lines: str, version: str = "HTTP/1.1") -> bytes:
        head = [f"POST {path} {version}", "Host: localhost", f"Content-Length: {len(body)}"]
        return "\r\n".join([*head, *lines]).encode() + b"\r\n\r\n" + body

    def right(self) -> bytes:
        """A request that is right."""
        if self.rng.random() < 0.3:
            path = self.rng.choice(["/health", "/metrics", "/v1/models", "/metrics/prometheus"])
            return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        path, body = self.body()
        return self.request(path, json.dumps(body).encode())

    def valid(self) -> Shot:
        return Shot("valid", (self.right(),), whole=True)

    def bytes_mutated(self) -> Shot:
        data = bytearray(self.right())
        for _ in range(self.rng.randint(1, 6)):
            at = self.rng.randrange(len(data))
            match self.rng.randrange(4):
                case 0:
                    data[at] = self.rng.randrange(256)
                case 1:
                    del data[at : at + self.rng.randint(1, 12)]
                case 2:
                    data[at:at] = self.rng.randbytes(self.rng.randint(1, 12))
                case _:
                    data[at:at] = data[at : at + self.rng.randint(1, 40)]
            if not data:
                data = bytearray(b"\r\n")
        return Shot("bytes", (bytes(data),))

    def framed_badly(self) -> Shot:
        path, found = self.body()
        body = json.dumps(found).encode()
        size = len(body)
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
        lines, sent = self.rng.choice(
            [
                ([f"Content-Length: {size}", "Transfer-Encoding: chunked"], chunked),
                (["Transfer-Encoding: chunked", f"Content-Length: {size}"], body),
                (["Transfer-Encoding: chunked"], chunked),
                (["Transfer-Encoding: xchunked"], chunked),
                (["Transfer-Encoding: chunked, identity"], chunked),
                (["Transfer-Encoding : chunked"], chunked),
                (["Transfer-Encoding: chunked"], b"fffffffffffffffff\r\n" + body),
                (["Transfer-Encoding: chunked"], b"1;" + b"x" * 20_000 + b"\r\na\r\n0\r\n\r\n"),
                ([f"Content-Length: {size}", f"Content-Length: {size + 1}"], body),
                ([f"Content-Length: {size}", f"Content-Length: {size}"], body),
                ([f"Content-Length: {size}, {size}"], body),
                ([f"Content-Length: -{size}"], body),
                ([f"Content-Length: +{size}"], body),
                ([f"Content-Length: 0x{size:x}"], body),
                ([f"Content-Length: {size}.0"], body),
                (["Content-Length: " + "9" * 400], body),
                (["Content-Length: 18446744073709551616"], body),
                (["Content-Length: 4294967296"], body),
                (["Content-Length:"], body),
                ([], body),
                ([f"Content-Length: {size}", "Content-Encoding: gzip"], body),
                ([f"Content-Length: {size}", "Expect: 100-continue"], body),
                ([f"Content-Length: {size}", "Expect: something"], body),
            ]
        )
        head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""])
        return Shot("framing", (head.encode() + sent,))

    def head_abused(self) -> Shot:
        path, found = self.body()
        body = json.dumps(found).encode()
        junk = "j" * self.rng.choice([100, 8_000, 17_000, 200_000])
        line = self.rng.choice(
            [
                f"X-Junk: {junk}",
                f"{junk}: x",
                "\r\n".join(f"X-{n}: y" for n in range(self.rng.choice([50, 500, 5000]))),
                "X-Folded: a\r\n b",
                "X-Null: a\0b",
                "X-Bare: a\nY: b",
                "No colon here",
                ": no name",
                "X-High: \xff\xfe",
                "Host: localhost",
                "Host: evil.example",
                "Origin: https://evil.example",
                "Authorization: Bearer " + junk,
                'X-Request-Id: a"b\t',
                "Connection: upgrade\r\nUpgrade: websocket",
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
                "Connection: close, keep-alive",
                "Content-Type: " + junk,
                "Cookie: " + "a=b; " * 2000,
            ]
        )
        return Shot("head", (self.request(path, body, line),))

    def other_line(self) -> Shot:
        line = self.rng.choice(
            [
                "GET /health HTTP/1.0",
                "GET /health HTTP/0.9",
                "GET /health HTTP/1.2",
                "GET /health HTTP/2.0",
                "GET /health HTTP/9.9",
                "GET /health",
                "get /health HTTP/1.1",
                "GET  /health  HTTP/1.1",
                " GET /health HTTP/1.1",
                "GET http://evil.example/health HTTP/1.1",
                "GET //health HTTP/1.1",
                "GET /../../etc/passwd HTTP/1.1",
                "GET /v1/models/%2e%2e/%00 HTTP/1.1",
                "GET /v1/models/" + "x" * 9_000 + " HTTP/1.1",
                "GET /health?" + "q=" * 9_000 + " HTTP/1.1",
                "GET /h\xe9alth HTTP/1.1",
                "GET * HTTP/1.1",
                "OPTIONS * HTTP/1.1",
                "CONNECT evil.example:443 HTTP/1.1",
                "TRACE /health HTTP/1.1",
                "DELETE /v1/models HTTP/1.1",
                "HEAD /v1/models HTTP/1.1",
                "BREW /pot HTTP/1.1",
                "PRI * HTTP/2.0\r\n\r\nSM",
                "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                "\r\n\r\nGET /health HTTP/1.1",
            ]
        )
        return Shot("line", (line.encode("latin-1") + b"\r\nHost: localhost\r\n\r\n",))

    def json_broken(self) -> Shot:
        path, found = self.body()
        text = json.dumps(found)
        body = self.rng.choice(
            [
                text.encode()[: self.rng.randrange(len(text))],
                b"\xef\xbb\xbf" + text.encode(),
                text.encode("utf-16"),
                text.replace("hi", "\\ud83d").encode(),
                text.replace("hi", "\\udc00\\ud800").encode(),
                text.encode().replace(b"hi", b"\xed\xa0\x80"),
                text.encode().replace(b"hi", b"\xff\xc0\x80"),
                text.replace("hi", "\\u0000\\u001b[31m").encode(),
                text[:-1].encode() + b',"seed":' + b"9" * 400 + b"}",
                text[:-1].encode() + b',"temperature":' + b"0." + b"1" * 400 + b"}",
                text[:-1].encode() + b',"temperature":1e999}',
                text[:-1].encode() + b',"temperature":NaN}',
                text[:-1].encode() + b',"model":"again"}',
                text[:-1].encode() + b',"stop":"' + b"s" * 3_000 + b'"}',
                b"[" + text.encode() + b"]",
                b"null",
                b'"' + b"x" * 100_000 + b'"',
                b"",
                self.rng.randbytes(self.rng.randint(1, 2_000)),
            ]
        )
        return Shot("json", (self.request(path, body),), whole=True)

    def field_replaced(self) -> Shot:
        path, found = self.body()
        names = [*found, "n", "stop", "seed", "logit_bias", "tools", "tool_choice", "top_logprobs"]
        names += ["response_format", "metadata", "stream_options", "timeout_s", "priority"]
        names += ["chat_template_kwargs", "best_of", "echo", "logprobs", "temperature", "text"]
        for _ in range(self.rng.randint(1, 2)):
            found[self.rng.choice(names)] = self.anything()
        body = json.dumps(found).encode()
        return Shot("fields", (self.request(path, body),), whole=True)

    def anything(self, depth: int = 0) -> Any:
        """Some JSON."""
        simple: list[Any] = [
            *(
                None,
                True,
                False,
                0,
                -1,
                1,
                0.5,
                -0.0,
                2**31,
                2**63,
                -(2**63),
                10**30,
                1e308,
                5e-324,
            ),
            *(
                "",
                "a",
                "auto",
                "\x00",
                "</think>",
                "<|im_end|>",
                "😀" * 50,
                "x" * 10_000,
                "{}",
                "[",
            ),
        ]
        if depth > 3 or self.rng.random() < 0.6:
            return self.rng.choice(simple)
        size = self.rng.randint(0, 4)
        if self.rng.random() < 0.5:
            return [self.anything(depth + 1) for _ in range(size)]
        keys = ["type", "role", "content", "text", "name", "function", "schema", "5", "", "$ref"]
        return {self.rng.choice(keys): self.anything(depth + 1) for _ in range(size)}

    def deep(self) -> Shot:
        path, found = self.body()
        levels = self.rng.choice([63, 64, 65, 1_000, 60_000])
        opening, closing = self.rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
        bomb = opening * levels + b"1" + closing * levels
        place = self.rng.choice([b"messages", b"tools", b"response_format", b"x", b"metadata"])
        body = json.dumps(found).encode()[:-1] + b',"' + place + b'_":' + bomb + b"}"
        return Shot("depth", (self.request(path, body),), whole=True)

    def slow(self) -> Shot:
        data = self.right()
        cuts = sorted(self.rng.randrange(len(data)) for _ in range(self.rng.randint(1, 5)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        if self.rng.random() < 0.5:
            pieces = pieces[:-1]
        pause = self.rng.random() * 0.02
        return Shot("slow", tuple(filter(None, pieces)), pause_s=pause)

    def leaving(self) -> Shot:
        data = self.right()
        if self.rng.random() < 0.5:
            data = data[: self.rng.randrange(1, len(data))]
        return Shot("leaving", (data,), end=self.rng.choice(["half", "reset", "close"]))

    def pipelined(self) -> Shot:
        data = b"".join(self.right() for _ in range(self.rng.randint(2, 12)))
        data += self.rng.choice([b"", b"GET /hea", b"\0\0\0", self.rng.randbytes(40)])
        return Shot("pipelined", (data,))


def fire(shot: Shot, port: int) -> str:
    """Send `shot`; what came of it: a status, `silent`, `closed`, or `left`."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
        try:
            for piece in shot.pieces:
                link.sendall(piece)
                if shot.pause_s:
                    time.sleep(shot.pause_s)
            if shot.end == "reset":
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if shot.end in ("reset", "close"):
                return "left"
            if shot.end == "half":
                link.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The answer may have come, and the connection gone, before all was sent.
        return answer(link, PATIENCE_S if shot.whole else SILENCE_S)


def answer(link: socket.socket, patience_s: float) -> str:
    """The status of the first answer on `link`."""
    link.settimeout(patience_s)
    got = b""
    try:
        while not (found := _STATUS.match(_INTERIM.sub(b"", got))):
            more = link.recv(65536)
            if not more:
                return "closed" if not got else f"nonsense {got[:40]!r}"
            got += more
    except TimeoutError:
        return "silent"
    except OSError:
        return "closed"
    return found[1].decode()


class Report(NamedTuple):
    """What came of all shots; `wrong` are those that nothing documents."""

    outcomes: Counter[str]
    wrong: list[tuple[Shot, str]]


def bombard(shots: Iterable[Shot], port: int, workers: int = 12) -> Report:
    """Fire all `shots`, `workers` at once."""
    outcomes: Counter[str] = Counter()
    wrong = []
    with ThreadPoolExecutor(workers) as pool:
        tried = [(shot, pool.submit(fire, shot, port)) for shot in shots]
        for shot, found in tried:
            outcome = found.result()
            outcomes[outcome] += 1
            known = outcome in ("silent", "closed", "left")
            documented = outcome.isdigit() and int(outcome) in DOCUMENTED
            if not (documented or (known and not shot.whole)):
                wrong.append((shot, outcome))
    return Report(outcomes, wrong)


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """A server with the scripted engine, small, so that whatever is asked for ends soon."""
    config = folder / "config.json"
    engine = {"backend": "scripted", "stats_interval_s": 0, "kv_capacity": 2048}
    engine |= {"default_max_tokens": 4, "queue_limit": 256, "step_ms": 0}
    model = str(ROOT / "tests" / "fixtures" / "tiny-chat")
    config.write_text(json.dumps({"model": model, "world_size": 1, "engine": engine}))
    flags = ["--port", str(port), "--set", f"paths.log_dir={folder / 'log'}"]
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dgpp", "run", str(config), *flags],
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )


def memory(pid: int) -> int:
    """Bytes that the server's processes hold."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_info().rss for process in family)


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as found:
        return dict(json.loads(found.read()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), port)
        try:
            return _run(server.pid, asked.count, asked.seed, port, Path(folder))
        except OSError as error:
            log = (Path(folder) / "server.log").read_text(errors="replace")
            print(f"the server is gone ({error}), status {server.poll()}\n{log[-3000:]}")
            return 1
        finally:
            server.terminate()
            print("exit status", server.wait(60))


def _run(pid: int, count: int, seed: int, port: int, folder: Path) -> int:
    for _ in range(600):
        with suppress(OSError):
            if health(port)["ready"]:
                break
        time.sleep(0.1)
    maker = Maker(seed, str(health(port)["model"]))
    rounds = 10
    sizes, total, wrong = [], Counter[str](), []
    began = time.monotonic()
    for _ in range(rounds):
        report = bombard([maker.shot() for _ in range(count // rounds)], port)
        total += report.outcomes
        wrong += report.wrong
        sizes.append(memory(pid))
    seconds = time.monotonic() - began
    print(f"{sum(total.values())} requests in {seconds:.0f} s, seed {seed}")
    print("outcomes:", dict(sorted(total.items())))
    print("memory after each tenth, MiB:", [size >> 20 for size in sizes])
    for shot, outcome in wrong[:10]:
        print("NOT DOCUMENTED:", outcome, shot.kind, b"".join(shot.pieces)[:300])
    log = (folder / "server.log").read_text(errors="replace")
    traces = log.count("Traceback")
    print("tracebacks in the log:", traces)
    if traces:
        print(log[log.index("Traceback") - 300 :][:3000])
    time.sleep(1)
    state = health(port)
    print("afterwards:", state)
    grown = sizes[-1] - sizes[rounds // 3]
    good = not wrong and not traces and state["status"] == "ok" and grown < GROWTH_BYTES
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
