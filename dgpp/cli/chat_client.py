"""A client of one chat endpoint: asks, and yields the streamed answer piece by piece."""

from __future__ import annotations

import http.client
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from dgpp.errors import DgppError

# The server sends a keep-alive at least every 30 s; silence beyond this means it hangs.
_TIMEOUT_S = 120.0


class ChatError(DgppError):
    """The server cannot be reached, refused the request or broke off; the message says which."""


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the server uses its own default for when it is None."""

    max_tokens: int | None = None
    temperature: float | None = None


class Piece(msgspec.Struct, frozen=True):
    """Some text of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Error(msgspec.Struct):
    message: str


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    error: _Error | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class ChatClient:
    """Talks to the server at `url` (http or https). One request at a time, each on a connection
    of its own, so that closing it cancels the answer."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError as error:
            raise ChatError(f"--url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"--url {url}: expected http://HOST:PORT or https://HOST:PORT")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._prefix = parts.path.removesuffix("/v1")

    def model(self) -> str:
        """The id of the first model served. Raises ChatError."""
        with closing(self._connect()) as connection:
            answer = self._request(connection, "GET", "/v1/models", None)
            try:
                models = msgspec.json.decode(answer.read(), type=_Models).data
            except (msgspec.DecodeError, OSError, http.client.HTTPException) as error:
                raise ChatError(f"{self.url} is no OpenAI-compatible server: {error}") from None
        if not models:
            raise ChatError(f"{self.url} serves no model")
        return models[0].id

    def ask(self, model: str, messages: list[Message], options: Options) -> Generator[Piece]:
        """The answer to `messages` as it comes. Closing the iterator cancels it on the server.

        Raises ChatError, also in the middle of an answer.
        """
        body = {"model": model, "messages": messages, "stream": True}
        body |= msgspec.to_builtins(options)
        with closing(self._connect()) as connection:
            answer = self._request(
                connection, "POST", "/v1/chat/completions", msgspec.json.encode(body)
            )
            try:
                yield from pieces(answer)
            except (OSError, http.client.HTTPException) as error:
                raise ChatError(f"{self.url} broke off the answer: {error}") from None

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=_TIMEOUT_S)

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, self._prefix + path, body, headers)
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                return answer
            refusal = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(
                f"no server answers at {self.url} ({error}); "
                "start one with: dgpp run deploy/demo.json"
            ) from None
        raise ChatError(f"{self.url} refused: {_refusal_text(answer.status, refusal)}")


def pieces(lines: Iterable[bytes]) -> Iterator[Piece]:
    """The pieces of one chat stream given as the lines of its body.

    Raises ChatError on an error event, on an event that is not JSON, and on an end without [DONE].
    """
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            return
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except msgspec.DecodeError as error:
            raise ChatError(f"the server sent an event that cannot be read: {error}") from None
        if chunk.error is not None:
            raise ChatError(f"the server broke off the answer: {chunk.error.message}")
        for choice in chunk.choices:
            if choice.delta.reasoning_content:
                yield Piece(choice.delta.reasoning_content, reasoning=True)
            if choice.delta.content:
                yield Piece(choice.delta.content)
    raise ChatError("the server closed the connection in the middle of the answer")


def _refusal_text(status: int, body: bytes) -> str:
    try:
        error = msgspec.json.decode(body, type=_Chunk).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else f"HTTP status {status}"
