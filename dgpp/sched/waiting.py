"""The queue: higher priority first, arrival order within, and nobody overtaken without end."""

from __future__ import annotations

from itertools import islice

from dgpp.sched.choice import Choice

OVERTAKES = 32
"""A choice is overtaken by at most this many admissions of younger ones."""


class WaitingQueue:
    """Queued choices in two orders: of arrival, and of preference (priority, then arrival).

    A younger choice never waits to be overtaken more often than an older one has been, so the
    oldest of all is always the most overtaken: only its count needs looking at.
    """

    __slots__ = ("_by_arrival", "_levels", "_preference")

    def __init__(self) -> None:
        self._by_arrival: dict[int, Choice] = {}
        self._levels: dict[int, dict[int, Choice]] = {}
        self._preference: list[int] = []

    def __len__(self) -> int:
        return len(self._by_arrival)

    @property
    def patience(self) -> int:
        """How many younger choices the oldest still lets pass."""
        if not self._by_arrival:
            return OVERTAKES
        return OVERTAKES - next(iter(self._by_arrival.values())).overtaken

    def add(self, choice: Choice) -> None:
        """Queue `choice`, which is younger than all before it."""
        self._by_arrival[choice.arrival] = choice
        priority = choice.submit.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = {}
            self._preference = sorted(self._levels, reverse=True)
        level[choice.arrival] = choice

    def restore(self, choice: Choice) -> None:
        """Queue `choice` again, which had left: by its arrival."""
        queued = sorted((*self._by_arrival.values(), choice), key=lambda c: c.arrival)
        self._by_arrival.clear()
        self._levels.clear()
        for each in queued:
            self.add(each)

    def remove(self, choice: Choice) -> None:
        del self._by_arrival[choice.arrival]
        priority = choice.submit.priority
        level = self._levels[priority]
        del level[choice.arrival]
        if not level:
            del self._levels[priority]
            self._preference.remove(priority)

    def first(self, count: int) -> list[Choice]:
        """The `count` choices next in line, whether they fit or not: the oldest alone where its
        patience is at an end."""
        if not self._by_arrival:
            return []
        if not self.patience:
            return [next(iter(self._by_arrival.values()))]
        found: list[Choice] = []
        for priority in self._preference:
            found.extend(islice(self._levels[priority].values(), count - len(found)))
        return found

    def pick(self, free_blocks: int) -> Choice | None:
        """The next choice to admit, or None where nothing admissible fits `free_blocks`."""
        if not self._by_arrival:
            return None
        if not self.patience:
            oldest = next(iter(self._by_arrival.values()))
            return oldest if oldest.need <= free_blocks and not oldest.waits else None
        for priority in self._preference:
            for choice in self._levels[priority].values():
                if choice.need <= free_blocks and not choice.waits:
                    return choice
        return None

    def wake(self) -> None:
        """Nobody waits for the disk any more."""
        for choice in self._by_arrival.values():
            choice.waits = False

    def admit(self, choice: Choice) -> None:
        """Take `choice` out for good and count it against every older one that stays."""
        self.remove(choice)
        for arrival, older in self._by_arrival.items():
            if arrival > choice.arrival:
                break
            older.overtaken += 1
