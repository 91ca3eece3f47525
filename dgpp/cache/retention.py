"""Which entry gives way when the prefix cache is full: two orders of eviction.

By recency, the least recently used entry goes. That is a good guess while what fits is about what
is in use, and falls off a cliff beyond: where more conversations take turns than fit, each is
evicted just before it comes back, and none is ever hit.

Keeping, seven eighths of the cache are settled and hold their place while newcomers pass through
the last eighth. Among the settled, one that stays away much longer than returns usually take goes
first. Where there is none, the one that has just had its turn goes, which leaves those who are due
next: as many as fit are hit.

Either way an entry that a longer one has replaced goes before all others. Everything follows from
the order of the calls; no clock, no chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dgpp.cache.entry import Entry

SETTLED_PARTS, PARTS = 7, 8
"""Share of the cached weight that is settled."""
MEMORY = 32
"""A long absence is forgotten by one part in so many with every shorter one."""


class Segment:
    """Entries in order of their last use, and their weight."""

    __slots__ = ("entries", "weight")

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.weight = 0

    def oldest(self) -> Entry | None:
        return next(iter(self.entries.values()), None)

    def append(self, entry: Entry) -> None:
        """`entry` is the one used last."""
        self.entries[entry.number] = entry
        self.weight += entry.weight

    def remove(self, entry: Entry) -> None:
        del self.entries[entry.number]
        self.weight -= entry.weight


class Retention:
    """Orders entries by what their loss would cost.

    `add`, `touch`, `replace` and `remove` tell what happens; `pick` says who goes. Weights are in
    whatever the cache is short of: units of blocks, or snapshots. `flow` is the weight of all that
    came in or was used again since the start: ages and absences are counted in it. `absence` is how
    long those who come back stay away at most, as far as is known. `keeping` tells the order.
    """

    __slots__ = (
        "_hits",
        "_passing",
        "_recent",
        "_replaced",
        "_settled",
        "absence",
        "flow",
        "keeping",
    )

    def __init__(self, *, keeping: bool = False) -> None:
        self.keeping = keeping
        self.flow = 0
        self.absence = 0
        self._recent = Segment()
        self._settled = Segment()
        # They go before any recent one: overdue, or passed over.
        self._passing = Segment()
        self._replaced: dict[int, Entry] = {}
        self._hits: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._hits)

    @property
    def weight(self) -> int:
        """Of all entries that no newer one has replaced."""
        return self._recent.weight + self._settled.weight + self._passing.weight

    def settled(self, entry: Entry) -> bool:
        return entry.number in self._settled.entries

    def standing(self, entry: Entry) -> tuple[int, bool]:
        """How often `entry` was hit, and whether it is settled: what an entry inherits that
        continues it."""
        return self._hits[entry.number], self.settled(entry)

    def add(self, entry: Entry, came: int, hits: int = 0, *, settled: bool = False) -> None:
        """Take in `entry`, by which the content grew by `came`, with the standing it inherits."""
        self.flow += came
        entry.used = self.flow
        self._hits[entry.number] = hits
        (self._settled if settled and self.keeping else self._recent).append(entry)

    def replace(self, old: Entry, new: Entry) -> None:
        """`new` does all that `old` did, for longer prefixes: `old` goes first, or with it."""
        if old.newer is None:
            self._leave(old)
        else:
            # What stood in for it so far gives that over to `new`.
            old.newer.older.remove(old)
        self._replaced[old.number] = old
        old.newer = new
        new.older.append(old)

    def returned(self, used: int) -> None:
        """Somebody came back for what was used last at age `used`, be it still here or not."""
        away = self.flow - used
        self.absence = max(away, self.absence - self.absence // MEMORY - 1)

    def keep(self, keeping: bool) -> None:
        """Change the order."""
        self.keeping = keeping
        if not keeping:
            self._mix()

    def touch(self, entry: Entry) -> None:
        """A prompt began with `entry`."""
        number = entry.number
        self._hits[number] += 1
        self.flow += entry.weight
        entry.used = self.flow
        if entry.newer is not None:
            self._restore(entry)
        elif number in self._settled.entries:
            self._settled.remove(entry)
            self._settled.append(entry)
        else:
            self._leave(entry)
            self._recent.append(entry)
        if self.keeping and number not in self._settled.entries:
            self._promote(entry)

    def pass_over(self, entry: Entry) -> None:
        """A conversation went on beside `entry`, not from it: it will hardly be needed again."""
        if entry.newer is None:
            self._leave(entry)
            self._passing.append(entry)

    def resize(self, entry: Entry, weight: int) -> None:
        segment = self._segment(entry)
        if segment is not None:
            segment.weight += weight - entry.weight
        entry.weight = weight

    def remove(self, entry: Entry) -> None:
        """`entry` is gone; what it had replaced counts again, as the next to go."""
        number = entry.number
        if entry.newer is not None:
            entry.newer.older.remove(entry)
            entry.newer = None
            del self._replaced[number]
        else:
            self._leave(entry)
        del self._hits[number]
        for older in entry.older:
            older.newer = None
            del self._replaced[older.number]
            self._passing.append(older)
        entry.older.clear()

    def pick(self, fits: Callable[[Entry], bool]) -> Entry | None:
        """The entry to lose next among those that `fits` accepts; None where it accepts none."""
        if self.keeping:
            self._balance()
        for first in (self._replaced, self._passing.entries):
            for entry in first.values():
                if fits(entry):
                    return entry
        recent, settled = self._recent, self._settled
        groups: list[Iterable[Entry]] = [recent.entries.values()]
        if settled.entries:
            groups.append(reversed(settled.entries.values()))
            if recent.weight * PARTS < self.weight * (PARTS - SETTLED_PARTS):
                groups.reverse()
        return next((entry for group in groups for entry in group if fits(entry)), None)

    def _balance(self) -> None:
        """Let those go who are overdue, and the oldest newcomers settle where there is room."""
        settled, recent = self._settled, self._recent
        late = self.flow - self.absence - self.absence // 2
        while self.absence and (oldest := settled.oldest()) is not None and oldest.used < late:
            settled.remove(oldest)
            self._passing.append(oldest)
        while (oldest := recent.oldest()) is not None and self._has_room(oldest):
            recent.remove(oldest)
            settled.append(oldest)

    def _mix(self) -> None:
        """All entries are recent ones again, in order of their last use."""
        mixed = Segment()
        entries = (*self._settled.entries.values(), *self._recent.entries.values())
        for entry in sorted(entries, key=lambda e: (e.used, e.number)):
            mixed.append(entry)
        self._recent, self._settled = mixed, Segment()

    def _has_room(self, entry: Entry) -> bool:
        return (self._settled.weight + entry.weight) * PARTS <= self.weight * SETTLED_PARTS

    def _promote(self, entry: Entry) -> None:
        """Settle `entry` where there is room, or in the place of one that was hit less often."""
        if not self._has_room(entry):
            oldest = self._settled.oldest()
            # One hit more may only mean that the other's turn is still to come.
            if oldest is None or self._hits[oldest.number] + 1 >= self._hits[entry.number]:
                return
            self._settled.remove(oldest)
            self._passing.append(oldest)
        self._leave(entry)
        self._settled.append(entry)

    def _restore(self, entry: Entry) -> None:
        """`entry` was used although a newer one had replaced it."""
        assert entry.newer is not None
        entry.newer.older.remove(entry)
        entry.newer = None
        del self._replaced[entry.number]
        self._recent.append(entry)

    def _segment(self, entry: Entry) -> Segment | None:
        number = entry.number
        if number in self._recent.entries:
            return self._recent
        if number in self._settled.entries:
            return self._settled
        return self._passing if number in self._passing.entries else None

    def _leave(self, entry: Entry) -> None:
        segment = self._segment(entry)
        if segment is not None:
            segment.remove(entry)
