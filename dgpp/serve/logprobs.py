"""Log probabilities in the two forms that clients read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    """The parallel lists of legacy completions, with each token's place in the text.

    `text_offset` counts characters of the choice's text. The chosen token is always among its
    alternatives.
    """

    def __init__(self) -> None:
        self._offset = 0

    def form(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The object for the next `entries` of the choice."""
        tokens, values, tops, offsets = [], [], [], []
        for entry in entries:
            tokens.append(entry.token)
            values.append(max(entry.logprob, FLOOR))
            top = {one.token: max(one.logprob, FLOOR) for one in entry.top}
            tops.append({**top, entry.token: values[-1]})
            offsets.append(self._offset)
            self._offset += sum(byte & 0xC0 != 0x80 for byte in entry.raw)
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }
