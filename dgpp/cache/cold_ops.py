"""What the disk tier is told to do, and what comes of it."""

from __future__ import annotations

import hashlib

import msgspec

INVENTORY = 0
"""The operation that asks a rank what its disk held at the start."""


class ColdUnit(msgspec.Struct, frozen=True, array_like=True):
    """One unit of a prefix on disk: `pages` hold its blocks, `key` are its packed ids (and those
    that drafts looked ahead at). `parent` is the first page of the unit before it, −1 for none."""

    pages: tuple[int, ...]
    parent: int
    key: bytes


class ColdEntry(msgspec.Struct, frozen=True, array_like=True):
    """An entry on disk: it ends with the unit whose first page is `last`; `blob` are the pages of
    its snapshot, none where blocks hold all state. The rest is the memory entry's."""

    last: int
    position: int
    kind: str
    asked: int
    blob: tuple[int, ...] = ()


class Spill(msgspec.Struct, frozen=True, array_like=True):
    """Write `units`, whose blocks are `blocks` in their order, and `entry`, whose snapshot is
    `snapshot` (−1: none). What the pages held before is gone. `onto` is the point (`point_after`)
    of the list that this continues: what a rank has on its list beyond it is not on all disks."""

    op: int
    units: tuple[ColdUnit, ...]
    blocks: tuple[int, ...]
    entry: ColdEntry
    snapshot: int = -1
    onto: int = 0


class Restore(msgspec.Struct, frozen=True, array_like=True):
    """Read `pages` into `blocks`, one each, and `blob` into `snapshot` (−1: none), as they were
    at the point `onto` of the list or are after a spill that is still out."""

    op: int
    pages: tuple[int, ...]
    blocks: tuple[int, ...]
    blob: tuple[int, ...] = ()
    snapshot: int = -1
    onto: int = 0


class ColdDone(msgspec.Struct, frozen=True, array_like=True):
    """Operation `op` ended; `ok` where every rank did all of it. Of the inventory: the last `point`
    that the lists of all ranks passed."""

    op: int
    ok: bool
    point: int = 0


class ColdRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one spill put on a disk."""

    units: tuple[ColdUnit, ...]
    entry: ColdEntry


class Inventory(msgspec.Struct, frozen=True, array_like=True):
    """What a disk held at the start: at `point` units, parents before their children, and entries,
    oldest first; `later` is what was written since."""

    units: tuple[ColdUnit, ...] = ()
    entries: tuple[ColdEntry, ...] = ()
    point: int = 0
    later: tuple[ColdRecord, ...] = ()

    def points(self) -> tuple[int, ...]:
        """The points that the list passed, the latest last."""
        found = [self.point]
        for record in self.later:
            found.append(point_after(found[-1], record))
        return tuple(found)


def point_after(point: int, record: ColdRecord) -> int:
    """A digest of all records up to and with `record`, which follows `point`; 0 before any. Ranks
    whose lists passed one point hold the same there."""
    data = point.to_bytes(8, "little") + msgspec.msgpack.encode(record)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
