"""Files of keys and certificates that change, and sockets that are files, on a real loop."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import subprocess

import pytest
import uvloop
from aiohttp import web

from actors.http.connection import Listener
from actors.http.credentials import LOOK_S, Certificate, KeyFile
from actors.http.endpoint import Endpoint
from dgpp.config.secret_file import read_secret
from dgpp.config.settings import HttpSettings
from dgpp.errors import ConfigError

ONE, TWO = "k" * 20, "q" * 20


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda file: None, "No such file"),
        (lambda file: file.mkdir(), "not a regular file|Is a directory"),
        (lambda file: os.mkfifo(file, 0o600), "not a regular file"),
        (lambda file: write(file, ONE, 0o640), "others may read it; chmod 600"),
        (lambda file: write(file, ONE, 0o604), "others may read it; chmod 600"),
        (lambda file: write(file, "x" * 101), "over 100 bytes"),
    ],
)
def test_a_secret_is_read_only_from_a_file_of_ones_own(tmp_path, prepare, said):
    prepare(tmp_path / "secret")
    with pytest.raises(ConfigError, match=said) as caught:
        read_secret(str(tmp_path / "secret"), "the.key", 100)
    assert "the.key = " in str(caught.value)
    assert ONE not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_secret_that_may_not_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="Permission denied"):
        read_secret(write(tmp_path / "secret", ONE, 0o000), "the.key", 100)


def test_keys_are_read_again_and_a_bad_change_keeps_the_ones_before(tmp_path, caplog):
    clock = Clock()
    path = tmp_path / "keys"
    write(path, ONE)
    keys = KeyFile(str(path), clock)
    write(path, TWO + "\n" + "r" * 20)
    assert keys.current().know(ONE)  # not looked at yet
    clock.now += LOOK_S
    assert keys.current().know(TWO)
    assert not keys.current().know(ONE)
    for spoil in (lambda: write(path, ""), lambda: path.chmod(0o644), path.unlink):
        spoil()
        clock.now += LOOK_S
        caplog.clear()
        for _ in range(3):
            assert keys.current().know(TWO)
        assert len([r for r in caplog.records if "stay in force" in r.message]) == 1
    write(path, ONE)
    clock.now += LOOK_S
    assert keys.current().know(ONE)


def pair(folder, name, *, encrypted=False):
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    cover = ["-passout", "pass:secret"] if encrypted else ["-nodes"]
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-days", "2", "-subj", f"/CN={name}"),
                *("-addext", "subjectAltName=DNS:localhost", *cover),
                *("-keyout", str(key), "-out", str(cert)),
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl makes the certificates of this test")
    key.chmod(0o600)
    return cert, key


async def hello(request):
    return web.Response(text="hello")


def make_listener(accepting=lambda: None):
    return Listener(hello, max_connections=8, refused=lambda: None, accepting=accepting)


async def ask(reader, writer):
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    subject = writer.get_extra_info("peercert")
    writer.close()
    return answer, subject and subject["subject"][0][0][1]


def test_a_renewed_certificate_serves_new_connections(tmp_path, caplog):
    cert, key = pair(tmp_path, "old")
    newer = pair(tmp_path, "new")
    clock = Clock()

    async def scene():
        certificate = Certificate(HttpSettings(tls_cert=str(cert), tls_key=str(key)), clock)
        listener = make_listener(certificate.refresh)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        endpoint = await Endpoint.on_port(listener, "127.0.0.1", port, "http.port", certificate)
        trust = ssl.create_default_context(cafile=str(cert))
        trust.load_verify_locations(str(newer[0]))

        async def seen():
            clock.now += LOOK_S
            both = await asyncio.open_connection("localhost", port, ssl=trust)
            answer, name = await ask(*both)
            assert answer.endswith(b"hello")
            return name

        assert await seen() == "old"
        cert.write_bytes(newer[0].read_bytes())  # its key has not come yet
        assert await seen() == "old"
        assert "stays in force" in caplog.text
        key.write_bytes(newer[1].read_bytes())
        assert await seen() == "new"
        # A client that speaks no TLS is turned away, and the next one served.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in await reader.read()
        writer.close()
        assert await seen() == "new"
        endpoint.close()
        await listener.shutdown(1.0)

    asyncio.run(scene())


def test_files_that_are_no_certificate_are_named(tmp_path):
    cert, key = pair(tmp_path, "one")
    other = pair(tmp_path, "two")[1]
    locked = pair(tmp_path, "three", encrypted=True)
    text = tmp_path / "text"
    write(text, "nothing")

    def refused(cert, key, said):
        with pytest.raises(ConfigError, match=said):
            Certificate(HttpSettings(tls_cert=str(cert), tls_key=str(key)), Clock())

    refused(tmp_path / "absent", key, "http.tls_cert = .*: No such file")
    refused(cert, tmp_path / "absent", "http.tls_key = .*: No such file")
    refused(text, key, "http.tls_cert, http.tls_key: ")
    refused(cert, other, "KEY VALUES MISMATCH|key values mismatch")
    refused(*locked, "is encrypted")
    key.chmod(0o644)
    refused(cert, key, "all may read it; chmod o-rwx")


def test_a_socket_file_comes_and_goes_with_its_server(tmp_path):
    path = tmp_path / "s"

    async def scene():
        listener = make_listener()
        endpoint = await Endpoint.on_path(listener, str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert (await ask(*await asyncio.open_unix_connection(str(path))))[0].endswith(b"hello")
        with pytest.raises(ConfigError, match="another server listens there"):
            await Endpoint.on_path(listener, str(path))
        endpoint.close()
        assert not path.exists()
        # What a killed server left behind is cleared away; anything else is not.
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(path))
        again = await Endpoint.on_path(listener, str(path))
        again.close()
        path.write_text("mine")
        with pytest.raises(ConfigError, match=r"http.unix_socket = .*: there is a file"):
            await Endpoint.on_path(listener, str(path))
        assert path.read_text() == "mine"
        with pytest.raises(ConfigError, match=r"http.unix_socket = .*: its folder does not"):
            await Endpoint.on_path(listener, str(tmp_path / "absent" / "s"))
        with pytest.raises(ConfigError, match="too long"):
            await Endpoint.on_path(listener, str(tmp_path / ("s" * 200)))
        await listener.shutdown(1.0)

    asyncio.run(scene())


async def until(true):
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


def test_handshakes_count_from_the_moment_they_are_accepted(tmp_path):
    cert, key = pair(tmp_path, "one")
    refused = []

    async def scene():
        certificate = Certificate(HttpSettings(tls_cert=str(cert), tls_key=str(key)), Clock())
        listener = Listener(hello, max_connections=2, refused=lambda: refused.append(1))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        endpoint = await Endpoint.on_port(listener, "127.0.0.1", port, "http.port", certificate)
        trust = ssl.create_default_context(cafile=str(cert))
        # Two that say nothing are all that there may be.
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(listener.handshakes) == 2)
        with pytest.raises(OSError):
            await asyncio.open_connection("localhost", port, ssl=trust)
        assert refused == [1]
        for _, writer in silent:
            writer.close()
        await until(lambda: not listener.handshakes)
        # One that sends its request together with the end of its handshake is heard.
        answer, _ = await ask(*await asyncio.open_connection("localhost", port, ssl=trust))
        assert answer.endswith(b"hello")
        await until(lambda: not listener.connections)
        # Served ones count like those that are not yet.
        held = await asyncio.open_connection("localhost", port, ssl=trust)
        waiting = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: listener.handshakes)
        with pytest.raises(OSError):
            await asyncio.open_connection("localhost", port, ssl=trust)
        assert refused == [1, 1]
        for _, writer in (held, waiting):
            writer.close()
        endpoint.close()
        await listener.shutdown(1.0)

    for factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(scene())
        refused.clear()
