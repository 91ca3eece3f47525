"""What was evicted lately: so that a miss can be explained, and a return be learned from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

GHOSTS = 4096


class Ghost(NamedTuple):
    """An evicted prefix: its length in tokens, the number of the eviction, its conversation, and
    the age at which it was used last."""

    position: int
    eviction: int
    line: int
    used: int


class Ghosts:
    """The last evictions, by the mark of the prefix."""

    __slots__ = ("_by_mark", "evictions")

    def __init__(self) -> None:
        self._by_mark: dict[int, Ghost] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._by_mark)

    def add(self, mark: int, position: int, line: int, used: int) -> None:
        self.evictions += 1
        self._by_mark.pop(mark, None)
        self._by_mark[mark] = Ghost(position, self.evictions, line, used)
        if len(self._by_mark) > GHOSTS:
            del self._by_mark[next(iter(self._by_mark))]

    def longest(self, marks: Iterable[int]) -> Ghost | None:
        """Of the prefixes with `marks`, ascending, the longest that was evicted. All of them are
        forgotten: a return is one return."""
        take = self._by_mark.pop
        found = None
        for mark in marks:
            found = take(mark, None) or found
        return found
