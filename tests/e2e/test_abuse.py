"""Bad, slow, huge and vanishing clients: a documented answer, nothing leaked, next served."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

CHAT = "/v1/chat/completions"


def chat(server, **more):
    body = {"model": server.model(), "messages": [{"role": "user", "content": "hi"}]}
    return body | {"max_tokens": 4, "ignore_eos": True} | more


def raw(server, data: bytes, *, leaves: bool = False) -> bytes:
    """What comes back on a connection of its own until the server closes it or falls silent. One
    who `leaves` ends its side once answered; for others a server waits that may still be sending.
    """
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(data)
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while more := link.recv(65536):
                got += more
                if leaves:
                    link.shutdown(socket.SHUT_WR)
                    leaves = False
    return got


def head(size: int, *extra: str) -> bytes:
    lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Content-Length: {size}", *extra]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def assert_serves(server):
    status, answer = server.post(CHAT, chat(server))
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 4


def assert_nobody_is_held_up(server, answers):
    """Others are served while `answers` are made: within two seconds, or on a machine that takes
    long over everything, a third of what those take."""
    waits, begun = [], time.monotonic()
    while not all(answer.done() for answer in answers):
        began = time.monotonic()
        assert_serves(server)
        waits.append(time.monotonic() - began)
    assert max(waits) < max(2.0, (time.monotonic() - begun) / 3)


def wait_idle(server, timeout_s: float = 10):
    """Until nothing lives in the engine; what the metrics say then."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = server.metrics()
        levels = found["scheduler"]
        names = ("active", "queued", "prefilling", "pool_blocks_in_use")
        if not any(levels[name] for name in names):
            return found
        time.sleep(0.05)
    pytest.fail(f"still busy after {timeout_s} s: {levels}")


@pytest.fixture(scope="module")
def server(serve_module):
    return serve_module(step_ms=1, max_connections=64)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"", 400, None),
        (b'{"model":"\\ud83d"}', 400, None),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, 400, None),
        (b'{"seed":' + b"9" * 400 + b"}", 400, None),
        (b"[]", 400, None),
        (b'{"model":5,"messages":[]}', 400, "model"),
    ],
)
def test_bodies_that_are_no_request(server, body, status, param):
    found, answer = server.post(CHAT, body)
    assert found == status
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_p", -0.1),
        ("n", 0),
        ("n", 10**9),
        ("max_tokens", 0),
        ("logit_bias", {"99999999": 5}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"abc": 1}),
        ("logit_bias", {"1": 101}),
        ("top_logprobs", 21),
        ("stop", ["a"] * 5),
        ("stream", "yes"),
        ("seed", 2**70),
        ("messages", []),
        ("messages", [{"role": "king", "content": "x"}]),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", {"type": "yaml"}),
    ],
)
def test_fields_out_of_range_are_named(server, field, value):
    status, answer = server.post(CHAT, chat(server, **{field: value}))
    assert status == 400
    assert answer["error"]["param"].split("[")[0].split(".")[0] == field


def test_other_routes_methods_and_models(server):
    assert server.get("/nowhere")[0] == 404
    assert server.get(CHAT)[0] == 405
    assert server.get("/v1/models/some/one")[0] == 404
    assert server.post(CHAT, chat(server, model="some/one"))[0] == 404


def test_a_prompt_beyond_the_context_is_refused_with_numbers(server):
    body = chat(server, messages=[{"role": "user", "content": "word " * 9000}])
    status, answer = server.post(CHAT, body)
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert "8192" in answer["error"]["message"]


def test_a_body_over_the_limit_is_refused_before_it_is_read(server):
    got = raw(server, head(2**40), leaves=True)
    assert got.startswith(b"HTTP/1.1 413")
    assert b"request_too_large" in got


def test_framing_that_is_not_served(server):
    assert (
        raw(server, b"POST %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % CHAT.encode())[9:12] == b"411"
    )
    chunked = head(2, "Transfer-Encoding: chunked").replace(b"Content-Length: 2\r\n", b"")
    assert raw(server, chunked + b"2\r\n{}\r\n0\r\n\r\n")[9:12] == b"501"
    assert raw(server, b"NONSENSE\r\n\r\n")[9:12] == b"400"
    both = head(2, "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
    assert raw(server, both)[9:12] in (b"400", b"501")
    assert raw(server, head(2, "Content-Length: 3") + b"{}")[9:12] == b"400"


def test_an_http_1_0_client_streams_until_the_end_of_its_connection(server):
    body = json.dumps(chat(server, stream=True)).encode()
    got = raw(server, head(len(body)).replace(b"HTTP/1.1", b"HTTP/1.0") + body)
    top, _, events = got.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.0 200")
    assert b"chunked" not in top.lower()
    assert events.startswith(b"data: {")
    assert events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("line", [b"GET /health HTTP/2.0", b"GET /health HTTP/0.9", b"GET /health"])
def test_other_versions_of_http_are_refused_in_one_that_is_spoken(server, line):
    got = raw(server, line + b"\r\nHost: localhost\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 505 ")
    assert b"only 1.0 and 1.1" in got


@pytest.mark.long
def test_a_head_that_dribbles_is_cut_off_in_time_from_its_first_byte(server):
    links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for link in links:
        link.sendall(b"G")
    began = time.monotonic()
    for link in links:
        link.settimeout(15)
        assert link.recv(100).startswith(b"HTTP/1.1 408")
        link.close()
    assert time.monotonic() - began < 13


def test_a_huge_head_is_refused(server):
    assert raw(server, head(2, "X-Junk: " + "j" * 20_000), leaves=True)[9:12] == b"431"
    many = [f"X-{i}: {'j' * 500}" for i in range(60)]
    assert raw(server, head(2, *many), leaves=True)[9:12] == b"431"


def test_a_hundred_connections_get_an_answer_or_a_503(server):
    links = []
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            with contextlib.suppress(ConnectionResetError):
                link = socket.create_connection(("127.0.0.1", server.port), timeout=5)
                links.append(stack.enter_context(link))
        time.sleep(0.3)
        refused = 0
        for link in links:
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                refused += link.recv(64).startswith(b"HTTP/1.1 503")
        assert refused >= 100 - 64
    time.sleep(0.2)
    assert_serves(server)


def test_a_reader_that_stops_reading_is_given_up_alone(serve):
    server = serve(kv_capacity=65536)
    wordy = chat(server, stream=True, max_tokens=8000, n=6, logprobs=True, top_logprobs=20)
    body = json.dumps(wordy)
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", server.port))
        link.sendall(head(len(body)) + body.encode())
        assert_serves(server)
        deadline = time.monotonic() + 30
        while server.metrics()["service"]["requests_cancelled"] < 1:
            assert time.monotonic() < deadline, server.log
            time.sleep(0.1)
        wait_idle(server)
    assert "given up: over 1048576 bytes unread" in server.log


def test_a_compressed_body_is_refused_unread(server):
    body = gzip.compress(json.dumps(chat(server, messages="x" * 10_000_000)).encode())
    got = raw(server, head(len(body), "Content-Encoding: gzip") + body)
    assert got.startswith(b"HTTP/1.1 415")


def test_a_body_too_large_for_text_is_refused_whatever_the_key_allows(server):
    got = raw(server, head(33 << 20), leaves=True)
    assert got.startswith(b"HTTP/1.1 413")
    assert b"the limit is 33554432 (of JSON)" in got


@pytest.mark.parametrize("place", ["messages", "prompt"])
def test_megabytes_of_text_are_refused_while_others_are_served(server, place):
    text = "lorem ipsum " * 1_500_000
    body = {"model": server.model(), "max_tokens": 1, "ignore_eos": True}
    path = CHAT if place == "messages" else "/v1/completions"
    huge = body | {place: [{"role": "user", "content": text}] if place == "messages" else text}
    with ThreadPoolExecutor(1) as pool:
        answers = [pool.submit(server.post, path, huge)]
        assert_nobody_is_held_up(server, answers)
    status, refusal = answers[0].result()
    assert status == 400
    assert refusal["error"]["code"] == "context_length_exceeded"


def test_many_choices_of_a_long_prompt_travel_and_are_served(serve):
    server = serve(placement="inline", kv_capacity=200_000, max_concurrency=4, queue_limit=128)
    long = [{"role": "user", "content": "qz" * 70_000}]
    status, answer = server.post(CHAT, chat(server, messages=long, n=120, max_tokens=1))
    assert status == 200, answer
    assert len(answer["choices"]) == 120
    # 120 copies of this would not fit a message between actors.
    assert answer["usage"]["prompt_tokens"] > 139_000


def test_more_choices_than_can_ever_wait_are_the_clients_fault(server):
    status, answer = server.post(CHAT, chat(server, n=100))
    assert status == 400
    assert answer["error"]["param"] == "n"
    # As many as may wait and run by their number, but not by their length.
    status, answer = server.post(CHAT, chat(server, n=72, max_tokens=2000))
    assert status == 400, answer
    assert (answer["error"]["param"], answer["error"]["code"]) == ("n", "too_many_choices")
    many = {"model": server.model(), "prompt": ["a"] * 100, "max_tokens": 1}
    status, answer = server.post("/v1/completions", many)
    assert status == 400
    assert answer["error"]["param"] == "prompt"


def test_large_bodies_at_once_hold_up_no_stream_for_long(server):
    numbers = b'{"model": "x", "logit_bias": [' + b"0.123456789," * 1_000_000 + b"1]}"
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(server.post, CHAT, numbers) for _ in range(6)]
        assert_nobody_is_held_up(server, answers)
    assert {answer.result()[0] for answer in answers} <= {400, 404}


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_frees_all_it_held(server, after_s, stream):
    body = json.dumps(chat(server, stream=stream, max_tokens=5000, n=2)).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as link:
        link.sendall(head(len(body)) + body)
        time.sleep(after_s)
    wait_idle(server)
    assert_serves(server)


def test_a_keep_alive_connection_serves_many(server):
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for stream in (False, True, False, True):
        link.request("POST", CHAT, json.dumps(chat(server, stream=stream)))
        answer = link.getresponse()
        assert answer.status == 200
        assert answer.read()
    link.close()


def test_more_than_the_queue_holds_is_shed_by_name(serve):
    server = serve(placement="inline", max_concurrency=2, queue_limit=2, step_ms=20)
    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda _: server.post(CHAT, chat(server, max_tokens=30)), range(12))
        )
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 503}
    assert statuses.count(200) >= 4
    codes = {answer["error"]["code"] for status, answer in answers if status == 503}
    assert codes == {"overloaded"}
    assert_serves(server)


@pytest.mark.parametrize(
    "count",
    [400, pytest.param(30_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_requests_with_random_disconnects_leave_nothing(serve, count):
    server = serve(step_ms=0.5, max_concurrency=16, queue_limit=256)
    rng = random.Random(7)
    assert_serves(server)
    resting = wait_idle(server)

    def figures():
        family = server.family()
        return (
            sum(p.num_fds() for p in family),
            sum(p.memory_info().rss for p in family),
            sum(p.num_threads() for p in family),
        )

    def one(seed):
        own = random.Random(seed)
        body = json.dumps(
            chat(
                server,
                stream=own.random() < 0.7,
                max_tokens=own.randint(1, 60),
                n=own.randint(1, 3),
            )
        ).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
            link.sendall(head(len(body), "Connection: close") + body)
            if own.random() < 0.5:
                time.sleep(own.random() * 0.05)
                return
            while link.recv(65536):
                pass

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, [rng.random() for _ in range(count // 4)]))
        wait_idle(server)
        before = figures()
        list(pool.map(one, [rng.random() for _ in range(count - count // 4)]))
    after_metrics = wait_idle(server)
    time.sleep(1)
    after = figures()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1] + (16 << 20)
    assert after[2] <= before[2] + 1
    assert after_metrics["scheduler"]["pool_blocks_in_use"] == 0
    assert resting["scheduler"]["pool_blocks_in_use"] == 0
    assert all(p.status() != psutil.STATUS_ZOMBIE for p in server.family())
    assert_serves(server)
