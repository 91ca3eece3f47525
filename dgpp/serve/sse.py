"""Deltas to server-sent events, for both completion APIs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from dgpp.serve.accounting import Accounting
from dgpp.serve.errors import ApiError
from dgpp.serve.logprobs import LegacyLogprobs, chat_logprobs
from dgpp.serve.request import GenerationRequest
from dgpp.serve.responses import call_object
from dgpp.text.delta import (
    ArgumentsPart,
    CallPart,
    Delta,
    Part,
    ReasoningPart,
    TextPart,
    TokenLogprob,
)

DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_BUCKET = 128
_LEAST_PADDING = 16

Padding = Callable[[int], str]
"""That many random letters and digits."""


def error_events(error: ApiError) -> bytes:
    """A stream that fails after its headers went out ends with these."""
    return b"data: " + error.json() + b"\n\n" + DONE


class EventStream(abc.ABC):
    """The events of one streamed response, as bytes ready to send.

    Nothing is emitted before the first output. Each choice gets exactly one event with a
    `finish_reason`; `end` closes the stream once `account.done`.
    """

    OBJECT = ""

    def __init__(
        self, request: GenerationRequest, created: int, padding: Padding | None = None
    ) -> None:
        """`created` is in Unix seconds. `padding` is needed where obfuscation is asked for."""
        self.account = Accounting(request.choices, request.n)
        self._wants_usage = request.include_usage
        self._padding = padding if request.include_obfuscation else None
        head: dict[str, Any] = {
            "id": request.id,
            "object": self.OBJECT,
            "created": created,
            "model": request.model,
            "system_fingerprint": None,
        }
        if request.service_tier is not None:
            head["service_tier"] = request.service_tier
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"

    def events(self, delta: Delta) -> bytes:
        """The events for `delta`, none for one that comes after its choice's end."""
        if not self.account.take(delta):
            return b""
        out = self._content(delta)
        if delta.finish is not None:
            last = self._event(self._last(delta.choice, delta.finish))
            if self.account.done and not self._wants_usage:
                last = last.removesuffix(_END) + self._timings() + _END
            out += last
        return out

    def end(self) -> bytes:
        """The usage event, if it was asked for, and the end mark."""
        if not self._wants_usage:
            return DONE
        usage = orjson.dumps(self.account.usage())
        return self._head + b'],"usage":' + usage + self._timings() + _END + DONE

    def _timings(self) -> bytes:
        """A member of the last event, whichever that is."""
        found = self.account.timings()
        return b"" if found is None else b',"timings":' + orjson.dumps(found)

    def _event(self, choice: bytes) -> bytes:
        if self._padding is None:
            return self._head + choice + self._tail
        tail = self._tail[:-3] + b',"obfuscation":"'
        size = len(self._head) + len(choice) + len(tail) + len(b'"}\n\n')
        letters = _LEAST_PADDING + -(size + _LEAST_PADDING) % _BUCKET
        return self._head + choice + tail + self._padding(letters).encode() + b'"}\n\n'

    @abc.abstractmethod
    def _content(self, delta: Delta) -> bytes:
        """The events for what `delta` says, its end aside."""

    @abc.abstractmethod
    def _last(self, choice: int, finish: str) -> bytes:
        """The choice object of the event that ends `choice`."""


class ChatStream(EventStream):
    """Events of /v1/chat/completions."""

    OBJECT = "chat.completion.chunk"

    def __init__(
        self, request: GenerationRequest, created: int, padding: Padding | None = None
    ) -> None:
        super().__init__(request, created, padding)
        self._begun = [False] * request.choices
        self._custom: list[list[bool]] = [[] for _ in range(request.choices)]
        self._opening = [b'{"index":%d,"delta":' % index for index in range(request.choices)]

    def _content(self, delta: Delta) -> bytes:
        index = delta.choice
        out = b""
        if not self._begun[index]:
            self._begun[index] = True
            role = b'{"role":"assistant","content":"","refusal":null}'
            out = self._event(self._choice(index, role))
        logprobs: Sequence[TokenLogprob] = delta.logprobs
        for part in delta.parts:
            shown = logprobs if isinstance(part, TextPart) else ()
            out += self._event(self._choice(index, self._said(index, part), shown))
            logprobs = () if shown else logprobs
        if logprobs:
            out += self._event(self._choice(index, b"{}", logprobs))
        return out

    def _said(self, index: int, part: Part) -> bytes:
        """The `delta` object of one part."""
        match part:
            case TextPart(text):
                return b'{"content":' + orjson.dumps(text) + b"}"
            case ReasoningPart(text):
                return b'{"reasoning_content":' + orjson.dumps(text) + b"}"
            case CallPart():
                self._custom[index].append(part.custom)
                return orjson.dumps(
                    {"tool_calls": [{"index": part.index, **call_object(part, "")}]}
                )
            case ArgumentsPart(at, text):
                said = {"input": text} if self._custom[index][at] else {"arguments": text}
                kind = "custom" if self._custom[index][at] else "function"
                return orjson.dumps({"tool_calls": [{"index": at, kind: said}]})

    def _choice(self, index: int, delta: bytes, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        form = orjson.dumps(chat_logprobs(logprobs)) if logprobs else b"null"
        return self._opening[index] + delta + b',"logprobs":' + form + b',"finish_reason":null}'

    def _last(self, choice: int, finish: str) -> bytes:
        reason = orjson.dumps(finish)
        return self._opening[choice] + b'{},"logprobs":null,"finish_reason":' + reason + b"}"


class CompletionStream(EventStream):
    """Events of /v1/completions."""

    OBJECT = "text_completion"

    def __init__(
        self, request: GenerationRequest, created: int, padding: Padding | None = None
    ) -> None:
        super().__init__(request, created, padding)
        self._legacy = [LegacyLogprobs(request) for _ in range(request.choices)]

    def _content(self, delta: Delta) -> bytes:
        if not (delta.parts or delta.logprobs):
            return b""
        form = b"null"
        if delta.logprobs:
            form = orjson.dumps(self._legacy[delta.choice].form(delta.logprobs))
        return self._event(self._choice(delta.choice, delta.text, form, b"null"))

    def _choice(self, index: int, text: str, logprobs: bytes, finish: bytes) -> bytes:
        return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (
            index,
            orjson.dumps(text),
            logprobs,
            finish,
        )

    def _last(self, choice: int, finish: str) -> bytes:
        return self._choice(choice, "", b"null", orjson.dumps(finish))


def event_stream(
    request: GenerationRequest, created: int, padding: Padding | None = None
) -> EventStream:
    """The stream that the request's API answers with."""
    kind = ChatStream if request.kind == "chat" else CompletionStream
    return kind(request, created, padding)
