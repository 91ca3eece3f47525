"""Who gets in, by a real server: keys, names, TLS, sockets, and clients that end their side."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import time

import pytest

CHAT = "/v1/chat/completions"
KEY, OTHER = "sk-" + "k" * 30, "sk-" + "o" * 30
OWNED = {"Authorization": f"Bearer {KEY}"}


def keys_file(folder, *keys):
    file = folder / "keys"
    file.write_text("\n".join(keys))
    file.chmod(0o600)
    return file


def wait_log(server, text, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while text not in server.log:
        assert time.monotonic() < deadline, server.log
        assert server.process.poll() is None, server.log
        time.sleep(0.02)


def ask(link, method, path, body=None, headers=None):
    link.request(method, path, body and json.dumps(body), headers or {})
    answer = link.getresponse()
    return answer.status, answer.headers, answer.read()


def test_a_server_for_other_machines_asks_for_a_key_over_tls(serve, tmp_path):
    cert, key = tmp_path / "cert", tmp_path / "key"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=x"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(cert)),
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl makes this test's certificate")
    file = keys_file(tmp_path, "# ours", KEY)
    flags = ("--bind-host", "0.0.0.0", "--api-key-file", str(file))
    flags += ("--tls-cert", str(cert), "--tls-key", str(key))
    server = serve(ready=False, placement="inline", flags=flags)
    wait_log(server, f"READY — https://127.0.0.1:{server.port}/v1")
    trust = ssl.create_default_context(cafile=str(cert))
    link = http.client.HTTPSConnection("127.0.0.1", server.port, context=trust, timeout=20)
    status, headers, body = ask(link, "GET", "/health", headers={"Host": "any.example"})
    assert status == 200
    model = json.loads(body)["model"]
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for path in ("/metrics", "/metrics/prometheus", "/v1/models", "/nowhere", CHAT):
        status, headers, refusal = ask(link, "POST" if path == CHAT else "GET", path, body)
        assert status == 401
        assert headers["WWW-Authenticate"] == "Bearer"
        assert json.loads(refusal)["error"]["code"] == "invalid_api_key"
    status, _, refusal = ask(link, "POST", "/v1/messages", body, {"X-Api-Key": OTHER})
    assert (status, json.loads(refusal)["error"]["type"]) == (401, "authentication_error")
    for headers in (OWNED, {"X-Api-Key": KEY}):
        assert ask(link, "POST", CHAT, body, headers)[0] == 200
        assert ask(link, "GET", "/metrics", None, headers)[0] == 200
    streamed = ask(link, "POST", CHAT, body | {"stream": True}, OWNED)[2]
    assert streamed.endswith(b"data: [DONE]\n\n")
    link.close()
    # A key is taken away while the server runs.
    keys_file(tmp_path, OTHER)
    time.sleep(1.1)
    link = http.client.HTTPSConnection("127.0.0.1", server.port, context=trust, timeout=20)
    assert ask(link, "GET", "/v1/models", headers=OWNED)[0] == 401
    assert ask(link, "GET", "/v1/models", headers={"X-Api-Key": OTHER})[0] == 200
    link.close()
    assert KEY not in server.log
    assert server.stop() == 0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


def test_a_socket_file_in_place_of_a_port(serve, tmp_path, monkeypatch):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    path = str(tmp_path / "s")
    flags = ("--unix-socket", path, "--bind-host", "0.0.0.0")
    server = serve(ready=False, placement="inline", flags=flags)
    wait_log(server, f"READY — unix:{path} ")
    manager.settimeout(5)
    assert manager.recv(100) == b"READY=1"  # as systemd would hear it
    manager.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))
    link = UnixConnection(path)
    assert ask(link, "GET", "/health", headers={"Host": "any.example"})[0] == 200
    link.close()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    assert not (tmp_path / "s").exists()


def test_pages_of_other_sites_reach_nothing(small):
    link = http.client.HTTPConnection("127.0.0.1", small.port, timeout=20)
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        for path in ("/health", "/v1/models"):
            status, _, body = ask(link, "GET", path, headers=headers)
            assert status == 403
            assert json.loads(body)["error"]["code"] == "host_not_allowed"
    ours = {"Host": f"localhost:{small.port}", "Origin": f"http://localhost:{small.port}"}
    status, headers, _ = ask(link, "GET", "/v1/models", headers=ours)
    assert status == 200
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert ask(link, "OPTIONS", "/v1/models", headers=ours)[0] == 405
    link.close()


def test_every_answer_has_a_request_id(small):
    link = http.client.HTTPConnection("127.0.0.1", small.port, timeout=20)
    mine = {"X-Request-Id": "trace-1:a/b"}
    body = {"model": small.model(), "messages": [{"role": "user", "content": "hi"}]}
    body |= {"max_tokens": 2}
    for given in (mine, {}, {"X-Request-Id": 'a"b'}, {"X-Request-Id": "x" * 129}):
        seen = set()
        for method, path, sent in (
            ("GET", "/health", None),
            ("GET", "/nowhere", None),
            ("POST", CHAT, body),
            ("POST", CHAT, body | {"stream": True}),
            ("POST", CHAT, {"model": 5}),
        ):
            _, headers, _ = ask(link, method, path, sent, given)
            seen.add(headers["X-Request-Id"])
        if given is mine:
            assert seen == {"trace-1:a/b"}
            # The log tells which answer it was.
            assert small.log.count("x_request_id=trace-1:a/b") == 2
        else:
            assert len(seen) == 5
            assert all(name.startswith("req_") and len(name) == 36 for name in seen)
    link.close()


def half_closed(small, data):
    """What a client gets that ends its side as soon as it has asked."""
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := link.recv(65536):
                got += more
    return got


def test_a_client_that_ends_its_side_gets_what_is_ready_but_no_text(small):
    for version in (b"1.0", b"1.1"):
        got = half_closed(small, b"GET /health HTTP/%b\r\nHost: localhost\r\n\r\n" % version)
        assert got.startswith(b"HTTP/%b 200" % version)
        assert b'"status"' in got
    body = json.dumps({"prompt": "count me"}).encode()
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    got = half_closed(small, head.format("/tokenize", len(body)).encode() + body)
    assert b'"count"' in got
    assert half_closed(small, head.format("/tokenize", 1000).encode() + body) == b""
    body = json.dumps({"model": small.model(), "prompt": "x", "max_tokens": 1500}).encode()
    began = time.monotonic()
    assert half_closed(small, head.format("/v1/completions", len(body)).encode() + body) == b""
    assert time.monotonic() - began < 3.0


def test_the_preface_of_http_2_is_answered_by_name(small):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as link:
        link.sendall(preface)
        got = link.recv(65536)
    assert got.startswith((b"HTTP/1.1 505", b"HTTP/1.0 505"))


@pytest.mark.long
def test_a_head_begun_behind_another_request_has_its_time_too(small):
    with socket.create_connection(("127.0.0.1", small.port), timeout=20) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        began = time.monotonic()
        got = b""
        while more := link.recv(65536):
            got += more
        assert 8 < time.monotonic() - began < 13
    assert got.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in got
