"""The front ends by the kind of their requests: how each reads a body and words an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import orjson

from dgpp.serve.accounting import Accounting
from dgpp.serve.anthropic import answer as anthropic
from dgpp.serve.anthropic.request import parse_messages
from dgpp.serve.chat import parse_chat
from dgpp.serve.completions import parse_completion
from dgpp.serve.errors import ApiError
from dgpp.serve.fields import Body
from dgpp.serve.request import GenerationRequest, Kind
from dgpp.serve.responses import WholeAnswer
from dgpp.serve.responses_api import answer as responses
from dgpp.serve.responses_api.request import parse_response
from dgpp.serve.served import ServedModel
from dgpp.serve.sse import Padding, error_events, event_stream
from dgpp.text.delta import Delta


class Streamed(Protocol):
    """A streamed answer."""

    account: Accounting

    def add(self, delta: Delta) -> bytes:
        """The events for `delta`, the closing ones with the last."""


class Whole(Protocol):
    """An answer in one piece."""

    account: Accounting

    def add(self, delta: Delta) -> None: ...

    def json(self) -> bytes:
        """The body, once `account.done`."""


class Front(NamedTuple):
    """`parse` raises ApiError; `error` and `error_events` word one for this API's clients."""

    parse: Callable[[Body, str, ServedModel], GenerationRequest]
    streamed: Callable[[GenerationRequest, int, Padding], Streamed]
    whole: Callable[[GenerationRequest, int], Whole]
    error: Callable[[ApiError], dict[str, Any]]
    error_events: Callable[[ApiError], bytes]


class _OpenAIStream:
    def __init__(self, request: GenerationRequest, created: int, padding: Padding) -> None:
        self._stream = event_stream(request, created, padding)
        self.account = self._stream.account

    def add(self, delta: Delta) -> bytes:
        events = self._stream.events(delta)
        return events + self._stream.end() if self.account.done else events


def _openai(parse: Callable[[Body, str, ServedModel], GenerationRequest]) -> Front:
    return Front(parse, _OpenAIStream, WholeAnswer, ApiError.object, error_events)


FRONTS: dict[Kind, Front] = {
    "chat": _openai(parse_chat),
    "completion": _openai(parse_completion),
    "messages": Front(
        parse_messages,
        lambda request, _created, _padding: anthropic.MessageEvents(request),
        lambda request, _created: anthropic.WholeMessage(request),
        anthropic.error_object,
        anthropic.error_events,
    ),
    "responses": Front(
        parse_response,
        lambda request, created, _padding: responses.ResponseEvents(request, created),
        responses.WholeResponse,
        ApiError.object,
        responses.error_events,
    ),
}


def error_body(error: ApiError, path: str) -> bytes:
    """`error` as the API behind `path` words it."""
    front = FRONTS["messages" if path.startswith("/v1/messages") else "chat"]
    return orjson.dumps(front.error(error))
