"""The prompts being read: shares of each step's budget, and who waits to share a beginning."""

from __future__ import annotations

from bisect import insort

from dgpp.cache.cuts import Cut
from dgpp.cache.entry import Kind
from dgpp.cache.lease import Match
from dgpp.cache.tree import ID_BYTES
from dgpp.sched.budgets import PrefillBudgets
from dgpp.sched.choice import Choice
from dgpp.sched.limits import EngineLimits
from dgpp.sched.memory import Memory
from dgpp.sched.plan import PrefillChunk
from dgpp.sched.reading import share_units

SCORED_ROWS = 512
"""Most of a scored prompt in one step, whatever the budget: each row wants logits of its own."""


class Prompts:
    """Choices whose prompts are not read whole, in order of admission.

    A prompt that begins like one being read follows it: it takes no part of the budget until what
    they have in common can be shared. So a burst of prompts with one beginning, or the choices of
    one prompt, read that once.
    """

    def __init__(self, limits: EngineLimits, budgets: PrefillBudgets, memory: Memory) -> None:
        self.budgets = budgets
        self.reading: list[Choice] = []
        self.following: list[Choice] = []
        self._align = limits.chunk_align
        self._memory = memory
        self._snapshots = limits.snapshots > 0 and not limits.paged_only
        self._turn = 0

    def __len__(self) -> int:
        return len(self.reading) + len(self.following)

    def follow(self, choice: Choice, match: Match | None) -> bool:
        """Let `choice` follow a prompt that is being read, where that spares it more than `match`
        does."""
        cache = self._memory.cache
        if cache is None or match is None:
            return False
        shape, prompt = cache.shape, choice.submit.prompt
        best: tuple[Choice, int] | None = None
        # The least that would be gained; most prompts differ before it.
        first = prompt[: max(match.tokens + shape.align, shape.min_tokens) * ID_BYTES]
        for leader in self.reading:
            if leader.lease is None or not leader.submit.prompt.startswith(first):
                continue
            most = min(leader.prompt_tokens, choice.prompt_tokens) - 1
            at = shape.floor(common_ids(leader.submit.prompt, prompt, most))
            if not shape.paged_only:
                # A snapshot can only be shared where one will be taken.
                at = max((c.position for c in leader.cuts if c.position <= at), default=0)
            least = max(match.tokens + 1, best[1] + 1 if best else 0, shape.min_tokens)
            if at >= least:
                best = leader, at
        if best is None:
            return False
        leader, at = best
        if all(cut.position != at for cut in leader.cuts) and at > leader.cached:
            insort(leader.cuts, Cut(at, Kind.TAIL), key=lambda cut: cut.position)
        choice.follows = best
        self.following.append(choice)
        return True

    def ready(self) -> list[Choice]:
        """Those whose wait is over; they no longer follow."""
        if not self.following:
            return []
        done = [choice for choice in self.following if _is_over(choice)]
        for choice in done:
            choice.follows = None
            self.following.remove(choice)
        return done

    def drop(self, choice: Choice) -> None:
        """The choice ended before its prompt was read."""
        (self.reading if choice.follows is None else self.following).remove(choice)

    def chunks(self, *, busy: bool) -> tuple[PrefillChunk, ...]:
        """This step's chunks, within the budget of a `busy` step or an idle one."""
        reading = self.reading
        if not reading:
            return ()
        align = self._align
        budget = self.budgets.busy if busy else self.budgets.idle
        ends = [self._end(choice) for choice in reading]
        needs = [-(-(end - c.read) // align) for c, end in zip(reading, ends, strict=True)]
        chunks: list[PrefillChunk] = []
        shares = share_units(needs, budget // align, self._turn)
        for choice, end, units in zip(reading, ends, shares, strict=True):
            if units:
                count = min(units * align, end - choice.read)
                last = choice.read + count == choice.prompt_tokens
                chunks.append(PrefillChunk(choice.slot, choice.read, count, last))
                choice.read += count
                choice.ahead += last
        self.reading = [c for c in reading if not c.is_read]
        self._turn += 1
        return tuple(chunks)

    def _end(self, choice: Choice) -> int:
        """Where the choice's next chunk ends at the latest: what follows it waits for that, and a
        snapshot holds the state of exactly its position."""
        end = choice.prompt_tokens
        for follower in self.following:
            assert follower.follows is not None
            leader, at = follower.follows
            if leader is choice and choice.read < at < end:
                end = at
        if choice.submit.scored >= 0:
            most = max(SCORED_ROWS // self._align, 1) * self._align
            end = min(end, choice.read + most)
        if self._snapshots and choice.cuts:
            end = min(end, choice.cuts[0].position)
        return end


def _is_over(choice: Choice) -> bool:
    assert choice.follows is not None
    leader, at = choice.follows
    return leader.lease is None or all(cut.position > at for cut in leader.cuts)


def common_ids(first: bytes, second: bytes, most: int) -> int:
    """How many of the first `most` packed ids are the same, found by halving."""
    low, high = 0, most
    if first[: high * ID_BYTES] == second[: high * ID_BYTES]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        start, end = low * ID_BYTES, middle * ID_BYTES
        if first[start:end] == second[start:end]:
            low = middle
        else:
            high = middle
    return low
