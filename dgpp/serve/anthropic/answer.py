"""Deltas to Anthropic's message object, whole or as events."""

from __future__ import annotations

import hashlib
from typing import Any

from dgpp.serve.accounting import Accounting
from dgpp.serve.encode import encode
from dgpp.serve.errors import ApiError
from dgpp.serve.jsonsafe import parse_object
from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import ArgumentsPart, CallPart, Delta, Part, ReasoningPart, TextPart

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_object(error: ApiError) -> dict[str, Any]:
    """`error` in Anthropic's form; the field and code that are not part of it stay in the text."""
    usual = "invalid_request_error" if error.status < 500 else "api_error"
    kind = "api_error" if error.code == "engine_failure" else _ERRORS.get(error.status, usual)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_events(error: ApiError) -> bytes:
    """A stream that fails after its headers went out ends with this."""
    return event("error", error_object(error))


def event(name: str, data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + encode(data) + b"\n\n"


def usage(account: Accounting) -> dict[str, int]:
    """Prompt tokens that the cache held are counted apart."""
    return {
        "input_tokens": account.prompt_tokens - account.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": account.cached_tokens,
        "output_tokens": account.completion_tokens,
    }


def signature(thinking: str) -> str:
    """Something to stand where clients want a thinking block signed; nothing is checked by it."""
    return "dgpp-" + hashlib.blake2b(thinking.encode(), digest_size=16).hexdigest()


def _ending(delta: Delta) -> dict[str, Any]:
    reason = "stop_sequence" if delta.stop is not None else _STOP[delta.finish or "stop"]
    return {"stop_reason": reason, "stop_sequence": delta.stop}


class WholeMessage:
    """Collects the deltas of one message; `object` is the body of the answer."""

    def __init__(self, request: GenerationRequest) -> None:
        self.account = Accounting(1)
        self._request = request
        self._blocks: list[tuple[Part, list[str]]] = []
        self._ending: dict[str, Any] = {}

    def add(self, delta: Delta) -> None:
        if not self.account.take(delta):
            return
        for part in delta.parts:
            if isinstance(part, CallPart):
                self._blocks.append((part, []))
            elif self._blocks and same_block(self._blocks[-1][0], part):
                self._blocks[-1][1].append(part.text)
            else:
                self._blocks.append((part, [part.text]))
        if delta.finish is not None:
            self._ending = _ending(delta)

    def json(self) -> bytes:
        """The body of the answer."""
        return encode(self.object())

    def object(self) -> dict[str, Any]:
        return {
            **_head(self._request),
            "content": [_block(part, "".join(texts)) for part, texts in self._blocks],
            **self._ending,
            "usage": usage(self.account),
        }


class MessageEvents:
    """The events of one streamed message: each block starts, grows and stops, one at a time."""

    def __init__(self, request: GenerationRequest) -> None:
        self.account = Accounting(1)
        self._request = request
        self._begun = False
        self._block: Part | None = None
        self._index = -1
        self._thought: list[str] = []

    def add(self, delta: Delta) -> bytes:
        """The events for `delta`; with the last one, those that end the message."""
        if not self.account.take(delta):
            return b""
        out = b"" if self._begun else self._start()
        for part in delta.parts:
            if self._block is None or not same_block(self._block, part):
                out += self._close() + self._open(part)
            if not isinstance(part, CallPart):
                out += self._grow(part)
        if delta.finish is not None:
            ended = {"type": "message_delta", "delta": _ending(delta), "usage": usage(self.account)}
            out += self._close() + event("message_delta", ended)
            out += event("message_stop", {"type": "message_stop"})
        return out

    def _start(self) -> bytes:
        self._begun = True
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        counted = {**usage(self.account), "output_tokens": 0}
        message = {**_head(self._request), **empty, "usage": counted}
        return event("message_start", {"type": "message_start", "message": message})

    def _open(self, part: Part) -> bytes:
        self._block = part
        self._index += 1
        block = _block(part, "")
        return self._event("content_block_start", content_block=block)

    def _grow(self, part: TextPart | ReasoningPart | ArgumentsPart) -> bytes:
        match part:
            case TextPart(text):
                grown = {"type": "text_delta", "text": text}
            case ReasoningPart(text):
                self._thought.append(text)
                grown = {"type": "thinking_delta", "thinking": text}
            case ArgumentsPart(_, text):
                grown = {"type": "input_json_delta", "partial_json": text}
        return self._event("content_block_delta", delta=grown)

    def _close(self) -> bytes:
        if self._block is None:
            return b""
        out = b""
        if isinstance(self._block, ReasoningPart):
            signed = {"type": "signature_delta", "signature": signature("".join(self._thought))}
            self._thought.clear()
            out = self._event("content_block_delta", delta=signed)
        self._block = None
        return out + self._event("content_block_stop")

    def _event(self, name: str, **data: Any) -> bytes:
        return event(name, {"type": name, "index": self._index, **data})


def same_block(last: Part, part: Part) -> bool:
    """Whether `part` goes on with the block that `last` began or grew."""
    match last, part:
        case (TextPart(), TextPart()) | (ReasoningPart(), ReasoningPart()):
            return True
        case (CallPart() | ArgumentsPart(), ArgumentsPart()):
            return True
    return False


def _head(request: GenerationRequest) -> dict[str, Any]:
    return {"id": request.id, "type": "message", "role": "assistant", "model": request.model}


def _block(part: Part, text: str) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": text}
        case ReasoningPart():
            signed = signature(text) if text else ""
            return {"type": "thinking", "thinking": text, "signature": signed}
        case CallPart(_, call, name):
            return {"type": "tool_use", "id": call, "name": name, "input": _input(text)}
    raise ValueError("a block begins with text, reasoning or a call")


def _input(text: str) -> Any:
    """The arguments as an object, within the bounds of what is read from a client; of a call that
    was cut off, what is whole is not known."""
    try:
        return parse_object(text.encode()) if text else {}
    except ApiError:
        return {}
