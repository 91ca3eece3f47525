"""One server as the command line talks to it: over http, https or a UNIX socket, with a key."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from dgpp.errors import DgppError

# The server sends a keep-alive at least every 30 s; silence beyond this means it hangs.
_TIMEOUT_S = 120.0
_UNIX = "unix:"

UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="DGPP_URL",
        help="Where the server listens, or unix:/PATH; names one that `dgpp run` started with "
        "keys of its own. (default: where the deployment of DGPP_CLUSTER_CONFIG does, as `dgpp up` "
        "started it; else at DGPP_HTTP_PORT, 18080, of this machine)",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str,
    typer.Option(
        "--api-key",
        envvar="DGPP_API_KEY",
        help="The server's API key; other users of this machine can read a command line, not a "
        "variable.",
        show_default=False,
    ),
]


class ClientError(DgppError):
    """The server cannot be reached, refused the request or broke off; the message says which."""


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error | None = None


class ServerClient:
    """Talks to the server at `url` (http, https or unix:/PATH). Each request is on a connection
    of its own, so that closing it cancels the answer."""

    def __init__(self, url: str, key: str = "") -> None:
        """Raises ClientError where `url` is none."""
        self.url = url.rstrip("/")
        self._key = key
        self._path = self.url.removeprefix(_UNIX) if self.url.startswith(_UNIX) else ""
        parts = urlsplit("http://localhost" if self._path else self.url)
        try:
            port = parts.port
        except ValueError as error:
            raise ClientError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(
                f"--url {url}: expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"
            )
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._prefix = parts.path.removesuffix("/v1")

    def get(self, path: str) -> bytes:
        """The body of GET `path`. Raises ClientError."""
        with closing(self.connect()) as connection:
            try:
                return self.request(connection, "GET", path, None).read()
            except (OSError, http.client.HTTPException) as error:
                raise ClientError(f"{self.url} broke off the answer: {error}") from None

    def connect(self) -> http.client.HTTPConnection:
        """A connection for one request."""
        if self._path:
            return _UnixConnection(self._path)
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT_S)

    def request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        """The answer, its body unread. Raises ClientError unless it is 200."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, self._prefix + path, body, headers)
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                return answer
            refusal = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(
                f"no server answers at {self.url} ({error}); "
                "start one with: dgpp up, or dgpp run deploy/demo.json; --url names one that "
                "listens elsewhere"
            ) from None
        raise ClientError(f"{self.url} refused: {_refusal_text(answer.status, refusal)}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def _refusal_text(status: int, body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else f"HTTP status {status}"
