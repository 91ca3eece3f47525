"""What a choice needs of the machine, and whether it may enter the queue at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dgpp.sched.choice import Choice
from dgpp.sched.limits import EngineLimits
from dgpp.sched.request import Submit

OVERLOADED = "overloaded"
TOO_MANY_CHOICES = "too_many_choices"
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"


def blocks_needed(limits: EngineLimits, prompt_tokens: int, max_tokens: int) -> int:
    """Blocks of the whole footprint, prompt and answer. No engine writes beyond it."""
    return -(-(prompt_tokens + max_tokens) // limits.block_tokens)


def context_refusal(limits: EngineLimits, prompt_tokens: int, max_tokens: int) -> str | None:
    """Why this many tokens can never fit, fit for the client; None where they can."""
    tokens = prompt_tokens + max_tokens
    ceiling, held = limits.position_ceiling, limits.blocks * limits.block_tokens
    if tokens <= min(ceiling, held):
        return None
    asked = f"you asked for {tokens} tokens ({prompt_tokens} in the prompt, {max_tokens} after it)"
    # An engine cuts its ceiling to its pool: where they are equal, the pool is the limit.
    if tokens > ceiling and ceiling != held:
        return f"This model's context holds {ceiling} tokens; {asked}"
    return f"This server's cache holds {held} tokens (engine.kv_capacity); {asked}"


def request_of(choice_id: str) -> str:
    """The request that choice `<request>-<k>` belongs to."""
    return choice_id.rpartition("-")[0] or choice_id


def groups(submits: Iterable[Submit]) -> list[list[Submit]]:
    """The submits by request, both in arrival order."""
    by_request: dict[str, list[Submit]] = {}
    for submit in submits:
        by_request.setdefault(request_of(submit.id), []).append(submit)
    return list(by_request.values())


class Door:
    """Counts one tick's newcomers against the queue limit.

    Choices that a free slot takes in this very tick do not count. The door walks the newcomers in
    the order in which they will be admitted; `openings` is how many slots they can have, 0 where
    those who already wait may come first.
    """

    __slots__ = ("_free_blocks", "_limit", "_openings", "_queued")

    def __init__(self, limit: int, queued: int, openings: int, free_blocks: int) -> None:
        self._limit = limit
        self._queued = queued
        self._openings = openings
        self._free_blocks = free_blocks

    def accepts(self, group: Sequence[Choice]) -> bool:
        """Whether all of `group` may enter; if so they are counted."""
        queued, openings, blocks = self._queued, self._openings, self._free_blocks
        for choice in group:
            if openings and choice.need <= blocks:
                openings -= 1
                blocks -= choice.need
            else:
                queued += 1
        if queued > self._limit:
            return False
        self._queued, self._openings, self._free_blocks = queued, openings, blocks
        return True

    def refusal(self) -> str:
        return (
            f"The server is overloaded: {self._queued} choices wait, the limit is "
            f"{self._limit} (engine.queue_limit). Try again later"
        )
