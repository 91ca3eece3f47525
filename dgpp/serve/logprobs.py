"""Log probabilities in the two forms that clients read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import TokenLogprob

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """`{"content": [...], "refusal": null}` of chat completions."""
    content = [
        {
            **_alternative(entry.token, entry.raw, entry.logprob),
            "top_logprobs": [_alternative(top.token, top.raw, top.logprob) for top in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _alternative(token: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": max(logprob, FLOOR), "bytes": list(raw)}


class LegacyLogprobs:
    """The parallel lists of one choice of legacy completions, with each token's place in the text.

    `text_offset` counts characters of the choice's text. `top_logprobs` are the best tokens, as
    many as were asked for, and the token itself. What is no whole character is told as `bytes:`
    and its bytes in hexadecimal. Where the text begins with the prompt, its first token has null
    in both lists: nothing stands before it.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._offset = 0
        self._best = request.sampling.logprobs - 1
        self._is_first = request.repeats_prompt

    def form(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The object for the next `entries` of the choice."""
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in entries:
            token = _name(entry.token, entry.raw)
            tokens.append(token)
            values.append(None if self._is_first else max(entry.logprob, FLOOR))
            tops.append(None if self._is_first else self._top(token, entry))
            self._is_first = False
            offsets.append(self._offset)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in entry.raw)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _top(self, token: str, entry: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        # Ids may share a text: the better one stands for it.
        for one in entry.top[: self._best]:
            top.setdefault(_name(one.token, one.raw), max(one.logprob, FLOOR))
        top.setdefault(token, max(entry.logprob, FLOOR))
        return top


def _name(text: str, raw: bytes) -> str:
    """A token's `text`, unless its bytes are no text."""
    if "\ufffd" not in text:
        return text
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
