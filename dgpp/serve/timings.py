"""How long the parts of one response took, in the object that llama.cpp's clients read."""

from __future__ import annotations

from typing import Any

_MS = 1e6
"""Nanoseconds."""


class Timings:
    """Times of one response, in ns of one monotonic clock; over all of its choices together.

    The prompt's time begins when its first choice leaves the queue and ends with the first token.
    The tokens that come first are the prompt's work, so the rate of those after them leaves them
    out.
    """

    def __init__(self) -> None:
        self._seated = 0
        self._first = 0
        self._last = 0
        self._early: dict[int, int] = {}

    def seat(self, at: int) -> None:
        """The first choice left the queue."""
        self._seated = self._seated or at

    def commit(self, choice: int, tokens: int, at: int) -> None:
        """`choice` has `tokens` tokens, the last of them decided at `at`."""
        if not tokens:
            return
        self._first = self._first or at
        self._last = at
        self._early.setdefault(choice, tokens)

    def object(self, prompt: int, cached: int, predicted: int) -> dict[str, Any] | None:
        """`timings` of a response with `prompt` tokens, `cached` of them not read, and `predicted`
        tokens of answers; None where nothing was timed."""
        if not (self._seated and self._first):
            return None
        read = prompt - cached
        prompt_ms = max(0, self._first - self._seated) / _MS
        predicted_ms = (self._last - self._first) / _MS
        later = predicted - sum(self._early.values())
        return {
            "cache_n": cached,
            "prompt_n": read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": _per(prompt_ms, read),
            "prompt_per_second": _per(1e3 * read, prompt_ms),
            "predicted_n": predicted,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": _per(predicted_ms, later),
            "predicted_per_second": _per(1e3 * later, predicted_ms),
        }


def _per(amount: float, count: float) -> float:
    return amount / count if count > 0 else 0.0
