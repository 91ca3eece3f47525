"""What one response has used, and whether each of its choices has ended."""

from __future__ import annotations

from typing import Any

from dgpp.serve.timings import Timings
from dgpp.text.delta import CallPart, Delta


class Accounting:
    """Counts the tokens of one response.

    Prompt tokens count once however many choices there are, `n` for each prompt; over several
    prompts the caller gives the sum. Of a prompt, that is cached which its first choice found.
    """

    def __init__(self, choices: int, n: int = 1) -> None:
        self.prompt_tokens = 0
        self.times = Timings()
        self.tool_calls = 0
        self._n = n
        self._cached = [(0, 0)] * choices
        self._completion = [0] * choices
        self._reasoning = [0] * choices
        self._finish: list[str | None] = [None] * choices
        self._open = choices

    def prompt(self, tokens: int) -> None:
        """The prompt's length, known once it is encoded."""
        self.prompt_tokens = tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts that the prefix cache held."""
        return sum(cached for cached, _ in self._cached[:: self._n])

    @property
    def decoded_tokens(self) -> int:
        """Those of them that it held as decode had written them."""
        return sum(decoded for _, decoded in self._cached[:: self._n])

    def take(self, delta: Delta) -> bool:
        """Count `delta`; False where its choice has ended before, so that it says nothing."""
        choice = delta.choice
        if self._finish[choice] is not None:
            return False
        self.tool_calls += sum(isinstance(part, CallPart) for part in delta.parts)
        self._completion[choice] = delta.completion_tokens
        self._reasoning[choice] = delta.reasoning_tokens
        self._cached[choice] = (delta.cached_tokens, delta.decoded_tokens)
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

    def timings(self) -> dict[str, Any] | None:
        """The `timings` object of either API, None where nothing was timed."""
        return self.times.object(self.prompt_tokens, self.cached_tokens, self.completion_tokens)

    def usage(self) -> dict[str, Any]:
        """The `usage` object of either API."""
        completion = self.completion_tokens
        cached = {"cached_tokens": self.cached_tokens}
        if self.decoded_tokens:
            cached["cached_decoded_tokens"] = self.decoded_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": cached,
            "completion_tokens_details": {"reasoning_tokens": sum(self._reasoning)},
        }
