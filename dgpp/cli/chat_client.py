"""A client of one chat endpoint: asks, and yields the streamed answer piece by piece."""

from __future__ import annotations

import http.client
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal

import msgspec

from dgpp.cli.server_client import ClientError, ServerClient

ChatError = ClientError


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


class ChatClient(ServerClient):
    """A server's chat endpoint."""

    def model(self) -> str:
        """The id of the first model served. Raises ChatError."""
        with closing(self.connect()) as connection:
            answer = self.request(connection, "GET", "/v1/models", None)
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
        with closing(self.connect()) as connection:
            answer = self.request(
                connection, "POST", "/v1/chat/completions", msgspec.json.encode(body)
            )
            try:
                yield from pieces(answer)
            except (OSError, http.client.HTTPException) as error:
                raise ChatError(f"{self.url} broke off the answer: {error}") from None


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
