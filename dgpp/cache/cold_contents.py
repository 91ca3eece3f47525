"""What lies on the pages of a disk after any number of spills."""

from __future__ import annotations

from collections.abc import Iterator

from dgpp.cache.cold_ops import ColdEntry, ColdRecord, ColdUnit, Inventory, point_after


class ColdContents:
    """Units by their first page, entries by the first page of the unit that they end with.

    A record takes over its pages: whatever had them before is gone, with all that continues it.
    """

    def __init__(self) -> None:
        self._units: dict[int, ColdUnit] = {}
        self._entries: dict[int, ColdEntry] = {}
        self._below: dict[int, set[int]] = {}
        self._owner: dict[int, tuple[bool, int]] = {}

    @classmethod
    def at(cls, inventory: Inventory, point: int) -> ColdContents:
        """What was on the disk of `inventory` at `point`, which is one of its points."""
        found = cls()
        for unit in inventory.units:
            found._hang(unit)
        for entry in inventory.entries:
            found._end(entry)
        here = inventory.point
        for record in inventory.later:
            if here == point:
                break
            found.take(record)
            here = point_after(here, record)
        return found

    def take(self, record: ColdRecord) -> None:
        """What `record` wrote is there now."""
        for page in pages_of(record):
            self._empty(page)
        for unit in record.units:
            self._hang(unit)
        if record.entry.last in self._units:
            self._end(record.entry)

    def inventory(self, point: int = 0) -> Inventory:
        """Units that lead to an entry, in order of their depth and first page; entries, the oldest
        first. The same however often `records` were written anew."""
        depths = {-1: 0}
        entries = tuple(e for e in self._entries.values() if self._way(e.last, depths))
        del depths[-1]
        order = sorted(depths, key=lambda first: (depths[first], first))
        return Inventory(tuple(self._units[first] for first in order), entries, point)

    def records(self) -> Iterator[ColdRecord]:
        """Records that make these contents."""
        found = self.inventory()
        units = {unit.pages[0]: unit for unit in found.units}
        for entry in found.entries:
            way: list[ColdUnit] = []
            at = entry.last
            while at in units:
                way.append(units.pop(at))
                at = way[-1].parent
            way.reverse()
            yield ColdRecord(tuple(way), entry)

    def _way(self, last: int, depths: dict[int, int]) -> bool:
        """Note the depths of the units up to `last`; False where one of them is gone."""
        way: list[int] = []
        at = last
        while at not in depths:
            if at not in self._units:
                return False
            way.append(at)
            at = self._units[at].parent
        depth = depths[at]
        for first in reversed(way):
            depth += 1
            depths[first] = depth
        return True

    def _hang(self, unit: ColdUnit) -> None:
        first = unit.pages[0]
        self._units[first] = unit
        self._below.setdefault(unit.parent, set()).add(first)
        self._owner.update((page, (True, first)) for page in unit.pages)

    def _end(self, entry: ColdEntry) -> None:
        self._drop_entry(entry.last)
        self._entries[entry.last] = entry
        self._owner.update((page, (False, entry.last)) for page in entry.blob)

    def _empty(self, page: int) -> None:
        is_unit, key = self._owner.get(page, (False, -1))
        if is_unit:
            self._drop_unit(key)
        elif key >= 0:
            self._drop_entry(key)

    def _drop_unit(self, first: int) -> None:
        gone = [first]
        while gone:
            first = gone.pop()
            gone.extend(self._below.pop(first, ()))
            unit = self._units.pop(first, None)
            if unit is None:
                continue
            self._below.get(unit.parent, set()).discard(first)
            self._forget(unit.pages)
            self._drop_entry(first)

    def _drop_entry(self, last: int) -> None:
        entry = self._entries.pop(last, None)
        if entry is not None:
            self._forget(entry.blob)

    def _forget(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            self._owner.pop(page, None)


def pages_of(record: ColdRecord) -> tuple[int, ...]:
    """The pages that a record fills, in the order of their checksums: its units', then its own."""
    return (*(page for unit in record.units for page in unit.pages), *record.entry.blob)
