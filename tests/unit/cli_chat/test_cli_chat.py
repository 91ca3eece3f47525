"""`dgpp chat` against a scripted HTTP server."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.cli.chat_client import ChatClient, ChatError, Message, Options, Piece, pieces
from dgpp.cli.main import main


def delta(**fields: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode() + b"\n\n"


HELLO = [
    b": keep-alive\n\n",
    delta(role="assistant", content=""),
    delta(reasoning_content="hm "),
    delta(content="Hel"),
    delta(content="lo \u00fc"),
    b'data: {"choices": [], "usage": {"total_tokens": 3}}\n\n',
    b"data: [DONE]\n\n",
]


class Scripted(ThreadingHTTPServer):
    """Answers every chat with `events`; `None` among them waits until the client is gone."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events: list[bytes | None] = list(HELLO)
        self.status = 200
        self.models = ["dgpp/demo"]
        self.asked: list[dict] = []
        self.disconnected = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": name} for name in self.server.models]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked.append(json.loads(self.rfile.read(length)))
        if self.server.status != 200:
            body = b'{"error": {"message": "too long", "code": "x"}}'
            self.send_response(self.server.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self.server.events:
            if event is None:
                with contextlib.suppress(ConnectionError):
                    self.rfile.read(1)
                self.server.disconnected.set()
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server():
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@dataclass
class Done:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def chat(capsys, monkeypatch):
    """Run `dgpp chat` with these arguments, and with lines typed when there are any."""

    def run(url, *args, typed=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        exit_code = main(["chat", "--url", url, *args])
        return Done(exit_code, *capsys.readouterr())

    return run


def test_once_prints_the_answer_alone(server, chat):
    done = chat(server.url, "--once", "hi", "--system", "Be brief.", "--temperature", "0")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "Hello ü\n"
    assert server.asked == [
        {
            "model": "dgpp/demo",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "hi"},
            ],
            "stream": True,
            "temperature": 0.0,
        }
    ]


def test_max_tokens_is_sent_when_given(server, chat):
    chat(server.url, "--once", "hi", "--max-tokens", "7")
    assert server.asked[0]["max_tokens"] == 7
    assert "temperature" not in server.asked[0]


@pytest.mark.parametrize("option", [("--max-tokens", "0"), ("--temperature", "2.5")])
def test_values_out_of_range_are_refused(server, chat, option):
    assert chat(server.url, "--once", "hi", *option).exit_code != 0
    assert server.asked == []


def test_conversation_keeps_its_turns_until_reset(server, chat):
    done = chat(server.url, typed="one\n\ntwo\n/what\n/reset\nthree\n/quit\nfour\n")
    assert done.exit_code == 0, done.stderr
    said = [[m["content"] for m in body["messages"]] for body in server.asked]
    assert said == [["one"], ["one", "Hello ü", "two"], ["three"]]


def test_end_of_input_ends_the_conversation(server, chat):
    assert chat(server.url, typed="one\n").exit_code == 0


def test_error_in_a_conversation_is_shown_and_the_question_forgotten(server, chat):
    server.status = 400
    done = chat(server.url, typed="one\ntwo\n")
    assert done.exit_code == 0
    assert done.stdout.count("refused: too long") == 2
    assert [len(body["messages"]) for body in server.asked] == [1, 1]


def test_no_server_is_named(chat):
    with Scripted() as server:
        url = server.url
    done = chat(url, "--once", "hi")
    assert done.exit_code == 1
    assert f"no server answers at {url}" in done.stderr
    assert "dgpp run" in done.stderr


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:1", "http://", "http://h:99999"])
def test_bad_url_is_named(chat, url):
    done = chat(url, "--once", "hi")
    assert done.exit_code == 1
    assert f"--url {url}:" in done.stderr


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([b'data: {"error": {"message": "engine_failure"}}\n\n'], "engine_failure"),
        ([delta(content="x")], "in the middle"),
        ([b"data: {\n\n"], "cannot be read"),
        ([b"data: [DONE]\n\n"], "answered nothing"),
    ],
)
def test_broken_answers_are_named(server, chat, events, message):
    server.events = events
    done = chat(server.url, "--once", "hi")
    assert done.exit_code == 1
    assert message in done.stderr


def test_server_without_models_is_named(server, chat):
    server.models = []
    assert "serves no model" in chat(server.url, "--once", "hi").stderr


def test_closing_the_answer_disconnects(server):
    server.events = [delta(content="x"), None]
    answer = ChatClient(server.url).ask("m", [Message("user", "hi")], Options())
    assert next(answer) == Piece("x")
    answer.close()
    assert server.disconnected.wait(5)


def test_interrupt_cancels_and_exits_130(server):
    server.events = [delta(content="x"), None]
    command = [sys.executable, "-m", "dgpp", "chat", "--url", server.url, "--once", "hi"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert server.disconnected.wait(5)


@given(st.lists(st.tuples(st.booleans(), st.text(min_size=1)), max_size=8))
def test_pieces_are_what_was_sent(sent):
    lines = []
    for reasoning, text in sent:
        event = delta(**{"reasoning_content" if reasoning else "content": text})
        lines += event.splitlines(keepends=True)
    got = list(pieces([*lines, b"data: [DONE]\n"]))
    assert got == [Piece(text, reasoning) for reasoning, text in sent]


def test_stream_without_end_mark_is_an_error():
    with pytest.raises(ChatError):
        list(pieces([]))
