"""Which order of eviction serves better now: both are played in miniature, side by side."""

from __future__ import annotations

from dgpp.cache.entry import Entry, Kind, Node
from dgpp.cache.retention import Retention

MEMORY = 64
"""A hit more or less is forgotten by one part in so many with every return."""
MARGIN = 8
"""The lead, in parts of the cached weight, from which the other order is taken."""

_NOWHERE = Node(None, b"", ())


class Shadow:
    """A cache of lines alone, each a conversation with its weight, that evicts in one order."""

    __slots__ = ("_lines", "_order", "_weight")

    def __init__(self, *, keeping: bool) -> None:
        self._order = Retention(keeping=keeping)
        self._lines: dict[int, Entry] = {}
        self._weight = 0

    def returns(self, line: int, used: int) -> int:
        """The weight of `line` where it is here still, else 0; `used` is when it was used last."""
        entry = self._lines.get(line)
        self._order.returned(used)
        if entry is None:
            return 0
        self._order.touch(entry)
        return entry.weight

    def put(self, line: int, weight: int, room: int) -> None:
        """`line` is `weight` long from now on; the others make way until all fit `room`."""
        entry = self._lines.get(line)
        if entry is None:
            entry = Entry(line, _NOWHERE, 0, Kind.TAIL, -1, 0)
            self._lines[line] = entry
            self._order.add(entry, 0)
        grown = max(0, weight - entry.weight)
        self._weight += weight - entry.weight
        self._order.resize(entry, weight)
        self._order.flow += grown
        while self._weight > room:
            victim = self._order.pick(lambda each: each is not entry)
            if victim is None:
                break
            self._order.remove(victim)
            self._weight -= victim.weight
            del self._lines[victim.number]


class Judge:
    """Watches who comes back and says whether `keeping` would serve better than recency."""

    __slots__ = ("_gain", "_keep", "_lru", "keeping")

    def __init__(self) -> None:
        self.keeping = False
        self._lru = Shadow(keeping=False)
        self._keep = Shadow(keeping=True)
        self._gain = 0

    def returns(self, line: int, used: int, room: int) -> bool:
        """`line`, used last at age `used`, came back to a cache of weight `room`. True where the
        order changes by it."""
        won = self._keep.returns(line, used) - self._lru.returns(line, used)
        gain = self._gain
        self._gain = gain - (abs(gain) // MEMORY) * (1 if gain > 0 else -1) + won
        lead = -self._gain if self.keeping else self._gain
        if lead * MARGIN <= room:
            return False
        self.keeping = not self.keeping
        return True

    def put(self, line: int, weight: int, room: int) -> None:
        """`line` is `weight` long from now on."""
        self._lru.put(line, weight, room)
        self._keep.put(line, weight, room)
