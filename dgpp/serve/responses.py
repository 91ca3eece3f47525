"""Deltas to one whole answer, for both completion APIs, and the ids of responses."""

from __future__ import annotations

from typing import Any

import orjson

from dgpp.serve.accounting import Accounting
from dgpp.serve.logprobs import LegacyLogprobs, chat_logprobs
from dgpp.serve.request import GenerationRequest, Kind
from dgpp.text.delta import Delta, TokenLogprob

_PREFIX: dict[Kind, str] = {"chat": "chatcmpl", "completion": "cmpl"}
_OBJECT: dict[Kind, str] = {"chat": "chat.completion", "completion": "text_completion"}


def response_id(kind: Kind, tag: int) -> str:
    """`chatcmpl-` or `cmpl-` and the 16 hexadecimal digits of a 64-bit `tag`."""
    return f"{_PREFIX[kind]}-{tag % (1 << 64):016x}"


class WholeAnswer:
    """Collects the deltas of one response until `account.done`, then `json` is its body."""

    def __init__(self, request: GenerationRequest, created: int) -> None:
        """`created` is in Unix seconds."""
        self.account = Accounting(request.choices)
        self._request = request
        self._created = created
        self._texts: list[list[str]] = [[] for _ in range(request.choices)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(request.choices)]
        self._finish: list[str | None] = [None] * request.choices

    def add(self, delta: Delta) -> None:
        """Take in `delta`; one that comes after its choice's end says nothing."""
        if not self.account.take(delta):
            return
        self._texts[delta.choice].append(delta.text)
        self._logprobs[delta.choice].extend(delta.logprobs)
        self._finish[delta.choice] = delta.finish

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
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(self._texts[index]),
                "refusal": None,
            },
            "logprobs": chat_logprobs(self._logprobs[index]) if wanted else None,
            "finish_reason": self._finish[index],
        }

    def _legacy_choice(self, index: int) -> dict[str, Any]:
        wanted = self._request.sampling.logprobs >= 0
        return {
            "index": index,
            "text": "".join(self._texts[index]),
            "logprobs": LegacyLogprobs().form(self._logprobs[index]) if wanted else None,
            "finish_reason": self._finish[index],
        }
