"""Deltas to a response object, whole or as the events by which it grows."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson

from dgpp.serve.accounting import Accounting
from dgpp.serve.encode import encode
from dgpp.serve.errors import ApiError
from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import ArgumentsPart, CallPart, Delta, Part, ReasoningPart, TextPart


class Response:
    """One response as it grows, item by item; every step of it as events.

    `events` are only made where somebody reads them.
    """

    def __init__(self, request: GenerationRequest, created: int) -> None:
        self.account = Accounting(1)
        self._request = request
        self._created = created
        self._output: list[dict[str, Any]] = []
        self._status = "in_progress"
        self._reason: str | None = None
        self._open = False
        self._sequence = 0

    def object(self) -> dict[str, Any]:
        """The response as it stands."""
        request = self._request
        echo: dict[str, Any] = {
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "tools": [],
        }
        given = {key: value for key, value in json.loads(request.echo).items() if value is not None}
        incomplete = None if self._reason is None else {"reason": self._reason}
        return {
            "id": request.id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": None,
            "incomplete_details": incomplete,
            "model": request.model,
            "output": copy.deepcopy(self._output),
            "parallel_tool_calls": request.parallel,
            "previous_response_id": None,
            "store": False,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "tool_choice": "auto",
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": self._usage() if self.account.done else None,
            **echo,
            **given,
        }

    def begin(self) -> bytes:
        """The events before the first output."""
        return self._whole("response.created") + self._whole("response.in_progress")

    def grow(self, delta: Delta) -> bytes:
        """Take in `delta`; its events."""
        if not self.account.take(delta):
            return b""
        out = b""
        for part in delta.parts:
            if not (self._open and _goes_on(self._output[-1], part)):
                out += self._close("completed") + self._begin(part)
            if not isinstance(part, CallPart):
                out += self._extend(part)
        if delta.finish is not None:
            out += self._end(delta.finish)
        return out

    def _end(self, finish: str) -> bytes:
        cut = finish == "length"
        self._status = "incomplete" if cut else "completed"
        self._reason = "max_output_tokens" if cut else None
        return self._close(self._status) + self._whole(f"response.{self._status}")

    def _begin(self, part: Part) -> bytes:
        """Add the item that `part` begins."""
        self._open = True
        index = len(self._output)
        item = _item(part, f"{self._request.id}_{index}")
        self._output.append(item)
        out = self._event("response.output_item.added", output_index=index, item=item)
        if item["type"] == "message":
            item["content"].append({"type": "output_text", "text": "", "annotations": []})
            out += self._part("response.content_part.added", part=item["content"][0])
        elif item["type"] == "reasoning":
            item["content"].append({"type": "reasoning_text", "text": ""})
        return out

    def _extend(self, part: TextPart | ReasoningPart | ArgumentsPart) -> bytes:
        item = self._output[-1]
        match item["type"]:
            case "message":
                item["content"][0]["text"] += part.text
                return self._part("response.output_text.delta", delta=part.text, logprobs=[])
            case "reasoning":
                item["content"][0]["text"] += part.text
                return self._part("response.reasoning_text.delta", delta=part.text)
            case "function_call":
                item["arguments"] += part.text
                return self._on("response.function_call_arguments.delta", delta=part.text)
        item["input"] += part.text
        return self._on("response.custom_tool_call_input.delta", delta=part.text)

    def _close(self, status: str) -> bytes:
        """End the open item."""
        if not self._open:
            return b""
        self._open = False
        item = self._output[-1]
        item["status"] = status
        match item["type"]:
            case "message":
                text = item["content"][0]["text"]
                out = self._part("response.output_text.done", text=text, logprobs=[])
                out += self._part("response.content_part.done", part=item["content"][0])
            case "reasoning":
                text = item["content"][0]["text"]
                out = self._part("response.reasoning_text.done", text=text)
            case "function_call":
                name, text = item["name"], item["arguments"]
                out = self._on("response.function_call_arguments.done", name=name, arguments=text)
            case _:
                out = self._on("response.custom_tool_call_input.done", input=item["input"])
        index = len(self._output) - 1
        return out + self._event("response.output_item.done", output_index=index, item=item)

    def _part(self, kind: str, **data: Any) -> bytes:
        return self._on(kind, content_index=0, **data)

    def _on(self, kind: str, **data: Any) -> bytes:
        index = len(self._output) - 1
        return self._event(kind, item_id=self._output[index]["id"], output_index=index, **data)

    def _whole(self, kind: str) -> bytes:
        return self._event(kind, response=self.object())

    def _event(self, kind: str, **data: Any) -> bytes:
        number = self._sequence
        self._sequence += 1
        body = encode({"type": kind, "sequence_number": number, **data})
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _usage(self) -> dict[str, Any]:
        counted = self.account.usage()
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }


class ResponseEvents:
    """A streamed response."""

    def __init__(self, request: GenerationRequest, created: int) -> None:
        self._response = Response(request, created)
        self.account = self._response.account
        self._begun = False

    def add(self, delta: Delta) -> bytes:
        out = b"" if self._begun else self._response.begin()
        self._begun = True
        return out + self._response.grow(delta)


class WholeResponse:
    """A response in one piece."""

    def __init__(self, request: GenerationRequest, created: int) -> None:
        self._response = Response(request, created)
        self.account = self._response.account

    def add(self, delta: Delta) -> None:
        self._response.grow(delta)

    def json(self) -> bytes:
        return encode(self._response.object())


def error_events(error: ApiError) -> bytes:
    """A stream that fails after its headers went out ends with this."""
    data = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
    return b"event: error\ndata: " + orjson.dumps({**data, "sequence_number": 0}) + b"\n\n"


def _goes_on(item: dict[str, Any], part: Part) -> bool:
    match part:
        case TextPart():
            return bool(item["type"] == "message")
        case ReasoningPart():
            return bool(item["type"] == "reasoning")
        case ArgumentsPart():
            return item["type"] in ("function_call", "custom_tool_call")
    return False


def _item(part: Part, id: str) -> dict[str, Any]:  # noqa: A002
    match part:
        case TextPart():
            kind: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
        case ReasoningPart():
            kind = {"type": "reasoning", "summary": [], "content": []}
        case CallPart(_, call, name, True):
            kind = {"type": "custom_tool_call", "call_id": call, "name": name, "input": ""}
        case CallPart(_, call, name, False):
            kind = {"type": "function_call", "call_id": call, "name": name, "arguments": ""}
        case _:
            raise ValueError("an item begins with text, reasoning or a call")
    return {"id": id, "status": "in_progress", **kind}
