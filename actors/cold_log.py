"""What the disk tier's pages hold, in a file beside them, so that entries outlive the server.

The file begins with the deployment's key and a base: a point, and the records that made what was
there then. Behind it stands every entry that was written since, each one record behind its length
and its CRC. So no record is ever changed, and a file that ends in the middle of one is right up to
there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import crc32c
import msgspec

from actors.cold_folder import ColdFile, ColdFolder, unusable
from dgpp.cache.cold_contents import ColdContents, pages_of
from dgpp.cache.cold_ops import ColdRecord, Inventory, Spill, point_after

_HEAD = struct.Struct("<II")
LEAST_TO_COMPACT = 16 << 20
"""Bytes that a file grows by, at least, before it is written anew without what is gone."""
MOST_RECORD_BYTES = 256 << 20
LATEST = 64
"""Records that can be taken back: ranks that fell together differ by one or two."""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """The first `records` records make what was there at `point`."""

    point: int
    records: int


class Written(msgspec.Struct, frozen=True, array_like=True):
    """`record` is on disk; `sums` are the CRC-32C of its pages in the order of `pages_of`."""

    record: ColdRecord
    sums: tuple[int, ...]


NO_BEGINNING = "its list does not begin as it should, nothing of it is used"


class ColdLog:
    """The records in the file `name` of `folder`, of the deployment that `key` names.

    `found` is what was there at the start (`was_empty`: no list at all), `point` where the list
    stands, `sums` the CRC-32C of every page that was written. What another deployment left is not
    read. Raises ConfigError where the file cannot be used, and OSError where a record cannot be
    added.
    """

    def __init__(self, folder: ColdFolder, name: str, key: bytes) -> None:
        self._folder = folder
        self._name = name
        self._key = key
        self._size = self._compacted = 0
        self.remark = ""
        self.was_empty = False
        self.point = self._previous = 0
        try:
            self._file = folder.open(name)
        except OSError as error:
            raise unusable(error, folder.path(name)) from error
        try:
            self.found = self._load()
        except OSError as error:
            self._file.close()
            raise unusable(error, folder.path(name)) from error

    def add(self, job: Spill, sums: tuple[int, ...]) -> None:
        """What `job` says is on its pages now, whose CRCs are `sums`."""
        written = Written(ColdRecord(job.units, job.entry), sums)
        self._append(_framed(written))
        self._take(written)
        self._previous = self.point
        self.point = point_after(self.point, written.record)
        self._ends[self.point] = self._size
        if self._size > 2 * self._compacted + LEAST_TO_COMPACT:
            self._compact()

    def serves(self, point: int) -> bool:
        """Whether what was read at `point` can be read: the list stands there, or one record beyond
        of which it is not known yet whether it is on all disks."""
        return point in (self.point, self._previous)

    def go_back(self, point: int) -> None:
        """Stand at `point`: what was written after it is not on all disks. Where this list never
        passed it, nothing here is."""
        if point == self.point:
            return
        if point in self._ends:
            self._file.resize(self._ends[point])
            self._load()
        if self.point != point:
            self._begin(point)
            self._compact()

    def close(self) -> None:
        self._file.close()

    def _begin(self, point: int) -> None:
        """Nothing is there, at `point`."""
        self.point = self._previous = point
        self.sums: dict[int, int] = {}
        self._contents = ColdContents()
        self._ends: dict[int, int] = {}

    def _take(self, written: Written) -> None:
        self._contents.take(written.record)
        self.sums.update(zip(pages_of(written.record), written.sums, strict=True))

    def _load(self) -> Inventory:
        """Take over what the file says, as far as it is whole."""
        self._begin(0)
        data = bytearray(self._file.size())
        got = self._file.read(memoryview(data), 0) if data else 0
        frames = _frames(bytes(data[:got]))
        self.was_empty = not data
        key, _ = next(frames, (b"", 0))
        if key and key != self._key:
            self.remark = "what was there belongs to another deployment, it is not used"
        elif data and not key:
            self.remark = NO_BEGINNING
        if key != self._key or not self._load_base(frames):
            self._begin(0)
            self._compact()
            return Inventory()
        found = self._load_records(frames)
        if self._size < len(data):
            self.remark = "its list ends in what is not whole, that is not used"
            self._file.resize(self._size)
        return found

    def _load_base(self, frames: Iterator[tuple[bytes, int]]) -> bool:
        """Take in what was there at the base; False where that is not whole."""
        try:
            frame, self._size = next(frames)
            base = msgspec.msgpack.decode(frame, type=Base)
            for _ in range(base.records):
                frame, self._size = next(frames)
                self._take(msgspec.msgpack.decode(frame, type=Written))
        except (StopIteration, msgspec.DecodeError, ValueError, IndexError):
            self.remark = NO_BEGINNING
            return False
        self._compacted = self._size
        self.point = self._previous = base.point
        self._ends[self.point] = self._size
        return True

    def _load_records(self, frames: Iterator[tuple[bytes, int]]) -> Inventory:
        """Take in what was written since the base; what there is, the latest apart."""
        read: list[tuple[Written, int]] = []
        for frame, end in frames:
            try:
                written = msgspec.msgpack.decode(frame, type=Written)
            except (msgspec.DecodeError, ValueError):
                break
            if len(pages_of(written.record)) != len(written.sums):
                break
            read.append((written, end))
        early = max(0, len(read) - LATEST)
        before = self._contents.inventory(self.point)
        for place, (written, end) in enumerate(read):
            if place == early:
                before = self._contents.inventory(self.point)
            self._take(written)
            self._size = end
            self.point = point_after(self.point, written.record)
            self._ends[self.point] = end
        self._previous = self.point
        later = tuple(written.record for written, _ in read[early:])
        return msgspec.structs.replace(before, later=later)

    def _append(self, data: bytes) -> None:
        try:
            _write(self._file, data, self._size)
        except OSError:
            # Half a record would hide those after it.
            self._file.resize(self._size)
            raise
        self._size += len(data)

    def _compact(self) -> None:
        """Write the file anew, and put it in the place of the old one."""
        records: list[Base | Written] = [
            Written(record, tuple(self.sums[page] for page in pages_of(record)))
            for record in self._contents.records()
        ]
        fresh = self._name + ".new"
        file = self._folder.open(fresh, fresh=True)
        size = 0
        try:
            for data in (
                _frame(self._key),
                *map(_framed, (Base(self.point, len(records)), *records)),
            ):
                _write(file, data, size)
                size += len(data)
            self._folder.rename(fresh, self._name)
        except OSError:
            file.close()
            raise
        self._file.close()
        self._file = file
        self._size = self._compacted = size
        self._ends = {self.point: size}


def _write(file: ColdFile, data: bytes, at: int) -> None:
    done = 0
    while done < len(data):
        wrote = file.write(memoryview(data)[done:], at + done)
        if not wrote:
            raise OSError(f"{file.path}: {done} of {len(data)} bytes written")
        done += wrote


def _framed(what: Base | Written) -> bytes:
    return _frame(msgspec.msgpack.encode(what))


def _frame(data: bytes) -> bytes:
    return _HEAD.pack(len(data), crc32c.crc32c(data)) + data


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The frames of `data` with where each ends, up to the first that is not whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, check = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        frame = data[at : at + size]
        at += size
        if size > MOST_RECORD_BYTES or len(frame) != size or crc32c.crc32c(frame) != check:
            return
        yield frame, at
