"""What the disk tier's pages hold, in a file beside them, so that entries outlive the server.

Every entry that was written is one record at the end of the file, behind its length and its CRC. A
record takes over its pages: whatever had them before is gone with all that continues it. So no
record is ever changed, and a file that ends in the middle of one is right up to there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c
import msgspec

from dgpp.cache.cold_ops import ColdEntry, ColdUnit, Inventory, Spill
from dgpp.errors import ConfigError

_HEAD = struct.Struct("<II")
LEAST_TO_COMPACT = 16 << 20
"""Bytes that a file grows by, at least, before it is written anew without what is gone."""
MOST_RECORD_BYTES = 256 << 20


class Written(msgspec.Struct, frozen=True, array_like=True):
    """`units` and `entry` are on disk; `sums` are the CRC-32C of the units' pages in their order,
    then of the entry's own."""

    units: tuple[ColdUnit, ...]
    entry: ColdEntry
    sums: tuple[int, ...]


class ColdContents:
    """What lies on which page, after any number of records."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}
        """The CRC-32C of every page that holds something."""
        self._units: dict[int, ColdUnit] = {}
        self._entries: dict[int, ColdEntry] = {}
        self._below: dict[int, set[int]] = {}
        self._owner: dict[int, tuple[bool, int]] = {}

    def take(self, record: Written) -> None:
        """Units are known by their first page, entries by the unit that they end with."""
        pages = [page for unit in record.units for page in unit.pages] + list(record.entry.blob)
        for page in pages:
            self._empty(page)
        for unit in record.units:
            first = unit.pages[0]
            self._units[first] = unit
            self._below.setdefault(unit.parent, set()).add(first)
            self._owner.update((page, (True, first)) for page in unit.pages)
        entry = record.entry
        if entry.last in self._units:
            self._drop_entry(entry.last)
            self._entries[entry.last] = entry
            self._owner.update((page, (False, entry.last)) for page in entry.blob)
        self.sums.update(zip(pages, record.sums, strict=True))

    def inventory(self) -> Inventory:
        """Units whose way is whole, parents first, and entries that end with them, oldest first."""
        units: list[ColdUnit] = []
        whole = {-1}
        for first, unit in self._units.items():
            if unit.parent in whole:
                whole.add(first)
                units.append(unit)
        entries = (e for e in self._entries.values() if e.last in whole)
        return Inventory(tuple(units), tuple(entries))

    def records(self) -> Iterator[Written]:
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
            pages = [page for unit in way for page in unit.pages] + list(entry.blob)
            yield Written(tuple(way), entry, tuple(self.sums[page] for page in pages))

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
            self.sums.pop(page, None)


class ColdLog:
    """The records in the file `path`, of the deployment that `key` names.

    What another deployment left is not read. Raises ConfigError where the file cannot be used, and
    OSError where a record cannot be added.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path = path
        self._key = key
        self.contents = ColdContents()
        self.remark = ""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._load()
            self._compact()
        except OSError as error:
            raise ConfigError(f"nvme_cache.path: {path}: {error.strerror}") from error

    def add(self, job: Spill, sums: tuple[int, ...]) -> None:
        """What `job` says is on its pages now, whose CRCs are `sums`."""
        if job.fresh:
            self.contents = ColdContents()
            self._compact()
        record = Written(job.units, job.entry, sums)
        self.contents.take(record)
        data = _framed(msgspec.msgpack.encode(record))
        at = 0
        try:
            while at < len(data):
                at += os.write(self._file, data[at:])
        except OSError:
            # Half a record would hide those after it.
            os.ftruncate(self._file, self._size)
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(data)
        if self._size > 2 * self._compacted + LEAST_TO_COMPACT:
            self._compact()

    def close(self) -> None:
        os.close(self._file)

    def _load(self) -> None:
        frames = _frames(self._path.read_bytes())
        key = next(frames, b"")
        if key and key != self._key:
            self.remark = "what was there belongs to another deployment, it is not used"
        if key != self._key:
            return
        for frame in frames:
            try:
                self.contents.take(msgspec.msgpack.decode(frame, type=Written))
            except (msgspec.DecodeError, ValueError, IndexError):
                self.remark = "its list ends in a record that makes no sense"
                return

    def _compact(self) -> None:
        """Write the file anew, and put it in the place of the old one."""
        fresh = self._path.with_suffix(".new")
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(os.dup(file), "wb") as out:
            out.write(_framed(self._key))
            for record in self.contents.records():
                out.write(_framed(msgspec.msgpack.encode(record)))
        fresh.replace(self._path)
        os.close(self._file)
        self._file = file
        self._size = self._compacted = os.lseek(file, 0, os.SEEK_END)


def _framed(data: bytes) -> bytes:
    return _HEAD.pack(len(data), crc32c.crc32c(data)) + data


def _frames(data: bytes) -> Iterator[bytes]:
    """The frames of `data`, up to the first that is not whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, check = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        frame = data[at : at + size]
        at += size
        if size > MOST_RECORD_BYTES or len(frame) != size or crc32c.crc32c(frame) != check:
            return
        yield frame
