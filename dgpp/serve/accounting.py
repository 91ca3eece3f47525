"""What one response has used, and whether each of its choices has ended."""

from __future__ import annotations

from typing import Any

from dgpp.text.delta import Delta


class Accounting:
    """Counts the tokens of one response.

    Prompt tokens count once however many choices there are; over several prompts the caller
    gives the sum. `cached` are those of them that the prefix cache held.
    """

    def __init__(self, choices: int) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._completion = [0] * choices
        self._reasoning = [0] * choices
        self._finish: list[str | None] = [None] * choices
        self._open = choices

    def prompt(self, tokens: int, cached: int = 0) -> None:
        """The prompt's length, known once it is encoded."""
        self.prompt_tokens = tokens
        self.cached_tokens = cached

    def take(self, delta: Delta) -> bool:
        """Count `delta`; False where its choice has ended before, so that it says nothing."""
        choice = delta.choice
        if self._finish[choice] is not None:
            return False
        self._completion[choice] = delta.completion_tokens
        self._reasoning[choice] = delta.reasoning_tokens
        if delta.finish is not None:
            self._finish[choice] = delta.finish
            self._open -= 1
        return True

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return self._open == 0

    @property
    def completion_tokens(self) -> int:
        return sum(self._completion)

    def usage(self) -> dict[str, Any]:
        """The `usage` object of either API."""
        completion = self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": sum(self._reasoning)},
        }
