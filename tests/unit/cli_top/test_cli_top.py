"""`dgpp top` against metrics made up by hand, and a server that answers them."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from types import SimpleNamespace

import pytest
from rich.console import Console

from dgpp.cli.main import main
from dgpp.cli.top_frame import Sample, Standing, Written, frame
from dgpp.serve.metrics import MetricsSnapshot, PrefillRequest


def sections(found: MetricsSnapshot) -> Written:
    return Written(
        found.scheduler, found.service, found.prefix_cache, found.prefill, found.nvme_cache
    )


def later() -> MetricsSnapshot:
    found = MetricsSnapshot()
    levels = found.scheduler
    levels.active, levels.prefilling, levels.queued, levels.records = 3, 1, 5, 40
    levels.tokens_generated, levels.decode_steps, levels.decode_rows = 1000, 100, 250
    levels.step_ms, levels.prompt_tokens, levels.prompt_tokens_computed = 2000.0, 900, 600
    levels.pool_blocks_total, levels.pool_blocks_in_use = 200, 50
    found.service.requests_total, found.service.requests_shed = 42, 7
    cache = found.prefix_cache
    cache.enabled, cache.hits, cache.misses, cache.entries = True, 30, 10, 12
    found.prefill.requests.append(PrefillRequest("chatcmpl-7-0", 0, 4000, 1000, 0, 1000, 3000, 500))
    found.nvme_cache.enabled = True
    found.nvme_cache.bytes_total, found.nvme_cache.bytes_used = 64 << 20, 16 << 20
    return found


def shown(before: MetricsSnapshot, now: MetricsSnapshot, reason: str = "") -> str:
    console = Console(width=140, file=open("/dev/null", "w"), record=True)  # noqa: SIM115, PTH123
    with console.file:
        looks = [
            Sample(at, Standing("ok", "org/name", reason), sections(metrics))
            for at, metrics in ((10.0, before), (12.0, now))
        ]
        console.print(frame("http://x", *looks))
        return console.export_text()


def test_a_frame_shows_levels_and_the_rates_between_two_looks():
    before = MetricsSnapshot()
    before.scheduler.tokens_generated, before.scheduler.decode_steps = 800, 60
    before.scheduler.decode_rows, before.scheduler.step_ms = 150, 1000.0
    before.scheduler.prompt_tokens, before.scheduler.prompt_tokens_computed = 100, 100
    before.scheduler.records = 39
    before.service.requests_total = 32
    before.prefix_cache.hits, before.prefix_cache.misses = 27, 9
    text = shown(before, later())
    for said in (
        "org/name at http://x: ok",
        "3 decoding, 1 reading, 5 queued",
        "5.0/s",
        "42 came",
        "7 shed",
        "100.0 tok/s, 25.0 ms a step, 2.5 rows",
        "250 tok/s read, 150 tok/s cached",
        "50 of 200 blocks in use",
        "75% of 4 looked up now, 75% in all; 12 entries",
        "chatcmpl-7-0",
        "1000 of 4000 tokens, 0.5 s",
        "16 of 64 MiB",
    ):
        assert said in text, text


def test_a_server_that_was_started_anew_has_no_negative_rates():
    old = later()
    old.scheduler.records = 10**6
    old.scheduler.tokens_generated = 10**9
    text = shown(old, later(), "the queue is full")
    assert "500.0 tok/s" in text
    assert "the queue is full" in text
    assert "-" not in text.split("decode")[1].split("\n")[0]


def test_an_idle_server_divides_by_nothing():
    text = shown(MetricsSnapshot(), MetricsSnapshot())
    assert "0.0 tok/s, no step" in text
    assert "off" in text


@pytest.fixture
def served(tmp_path):
    """A server on a UNIX socket that asks for a key."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("Authorization")))
            known = self.headers.get("Authorization") == "Bearer secret"
            body = later().json()
            if self.path.startswith("/health"):
                body = json.dumps({"status": "ok", "model": "org/name", "live": True}).encode()
            if not known:
                body = b'{"error": {"message": "The API key is not known"}}'
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self):
            return "unix"

        def log_message(self, *args):
            pass

    path = str(tmp_path / "s")
    with socketserver.UnixStreamServer(path, Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield SimpleNamespace(url=f"unix:{path}", asked=asked)
        server.shutdown()
        thread.join()


def test_one_frame_is_printed_of_a_server_behind_a_socket_and_a_key(served, capsys, monkeypatch):
    monkeypatch.setenv("DGPP_API_KEY", "secret")
    assert main(["top", "--url", served.url, "--once", "--interval", "0.1"]) == 0
    assert "org/name at unix:" in capsys.readouterr().out
    assert {path for path, _ in served.asked} == {"/metrics", "/health/live"}
    monkeypatch.setenv("DGPP_API_KEY", "wrong")
    assert main(["top", "--url", served.url, "--once"]) == 1
    assert "refused: The API key is not known" in capsys.readouterr().err
    assert main(["top", "--url", "unix:/nowhere", "--once"]) == 1
    assert "no server answers at unix:/nowhere" in capsys.readouterr().err
