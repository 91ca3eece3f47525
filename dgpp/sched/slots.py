"""Which choice holds which engine slot; the lowest free slot is given first."""

from __future__ import annotations

import heapq

from dgpp.sched.choice import Choice


class SlotPool:
    """`count` slots. Low numbers first keeps live slots dense, which narrow batches rely on."""

    __slots__ = ("_free", "holders")

    def __init__(self, count: int) -> None:
        self.holders: list[Choice | None] = [None] * count
        self._free = list(range(count))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, choice: Choice) -> int:
        """Give the lowest free slot to `choice`; there must be one."""
        slot = heapq.heappop(self._free)
        self.holders[slot] = choice
        return slot

    def release(self, slot: int) -> None:
        assert self.holders[slot] is not None
        self.holders[slot] = None
        heapq.heappush(self._free, slot)
