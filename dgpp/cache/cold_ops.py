"""What the disk tier is told to do, and what comes of it."""

from __future__ import annotations

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
    `snapshot` (−1: none). What the pages held before is gone; with `fresh`, all that was on disk
    before this run is."""

    op: int
    units: tuple[ColdUnit, ...]
    blocks: tuple[int, ...]
    entry: ColdEntry
    snapshot: int = -1
    fresh: bool = False


class Restore(msgspec.Struct, frozen=True, array_like=True):
    """Read `pages` into `blocks`, one each, and `blob` into `snapshot` (−1: none)."""

    op: int
    pages: tuple[int, ...]
    blocks: tuple[int, ...]
    blob: tuple[int, ...] = ()
    snapshot: int = -1


class ColdDone(msgspec.Struct, frozen=True, array_like=True):
    """Operation `op` ended; `ok` where every rank did all of it.

    `digest` says what a rank found in its inventory: all must have found the same.
    """

    op: int
    ok: bool
    digest: int = 0


class Inventory(msgspec.Struct, frozen=True, array_like=True):
    """What a disk held at the start: units, parents before their children, and entries, oldest
    first."""

    units: tuple[ColdUnit, ...] = ()
    entries: tuple[ColdEntry, ...] = ()
