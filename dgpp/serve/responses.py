"""Deltas to one whole answer, for both completion APIs, and the ids of responses."""

from __future__ import annotations

from typing import Any

import orjson

from dgpp.serve.accounting import Accounting
from dgpp.serve.logprobs import LegacyLogprobs, chat_logprobs
from dgpp.serve.request import GenerationRequest, Kind
from dgpp.text.delta import ArgumentsPart, CallPart, Delta, ReasoningPart, TextPart, TokenLogprob

_PREFIX: dict[Kind, str] = {
    "chat": "chatcmpl-",
    "completion": "cmpl-",
    "messages": "msg_",
    "responses": "resp_",
}
_OBJECT: dict[Kind, str] = {"chat": "chat.completion", "completion": "text_completion"}


def response_id(kind: Kind, tag: int) -> str:
    """`chatcmpl-`, `cmpl-`, `msg_` or `resp_` and the 16 hexadecimal digits of a 64-bit `tag`."""
    return f"{_PREFIX[kind]}{tag % (1 << 64):016x}"


def call_object(call: CallPart, arguments: str) -> dict[str, Any]:
    """One entry of `tool_calls`."""
    if call.custom:
        said = {"name": call.name, "input": arguments}
        return {"id": call.id, "type": "custom", "custom": said}
    said = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": said}


class _Message:
    """One choice's answer as it grows."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[CallPart, list[str]]] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: str | None = None

    def add(self, delta: Delta) -> None:
        for part in delta.parts:
            match part:
                case TextPart(text):
                    self.texts.append(text)
                case ReasoningPart(text):
                    self.reasoning.append(text)
                case CallPart():
                    self.calls.append((part, []))
                case ArgumentsPart(index, text):
                    self.calls[index][1].append(text)
        self.logprobs.extend(delta.logprobs)
        self.finish = delta.finish

    def object(self) -> dict[str, Any]:
        """The `message` of a chat answer; `content` is null beside calls alone."""
        text = "".join(self.texts)
        found: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            "refusal": None,
        }
        if self.reasoning:
            found["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            found["tool_calls"] = [call_object(c, "".join(pieces)) for c, pieces in self.calls]
        return found


class WholeAnswer:
    """Collects the deltas of one response until `account.done`, then `json` is its body."""

    def __init__(self, request: GenerationRequest, created: int) -> None:
        """`created` is in Unix seconds."""
        self.account = Accounting(request.choices, request.n)
        self._request = request
        self._created = created
        self._messages = [_Message() for _ in range(request.choices)]

    def add(self, delta: Delta) -> None:
        """Take in `delta`; one that comes after its choice's end says nothing."""
        if self.account.take(delta):
            self._messages[delta.choice].add(delta)

    def object(self) -> dict[str, Any]:
        """The response object of the request's API."""
        request = self._request
        form = self._chat_choice if request.kind == "chat" else self._legacy_choice
        found: dict[str, Any] = {
            "id": request.id,
            "object": _OBJECT[request.kind],
            "created": self._created,
            "model": request.model,
            "system_fingerprint": None,
            "choices": [form(index) for index in range(request.choices)],
            "usage": self.account.usage(),
        }
        if (timings := self.account.timings()) is not None:
            found["timings"] = timings
        if request.service_tier is not None:
            found["service_tier"] = request.service_tier
        if request.metadata is not None:
            found["metadata"] = request.metadata
        return found

    def json(self) -> bytes:
        """The body of the answer."""
        return orjson.dumps(self.object())

    def _chat_choice(self, index: int) -> dict[str, Any]:
        wanted = self._request.sampling.logprobs >= 0
        message = self._messages[index]
        return {
            "index": index,
            "message": message.object(),
            "logprobs": chat_logprobs(message.logprobs) if wanted else None,
            "finish_reason": message.finish,
        }

    def _legacy_choice(self, index: int) -> dict[str, Any]:
        wanted = self._request.sampling.logprobs >= 0
        message = self._messages[index]
        return {
            "index": index,
            "text": "".join(message.texts),
            "logprobs": LegacyLogprobs(self._request).form(message.logprobs) if wanted else None,
            "finish_reason": message.finish,
        }
