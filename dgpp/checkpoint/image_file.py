"""A file of arrays at fixed places, each with checksums: written once, read straight into memory.

    page of 4 KiB   "DGPPIMG", version, where the table is, its CRC-32
    arrays          each at a multiple of 4 KiB
    table           what the file is of (facts), and per array dtype, shape, place and checksums

The first page is written last, after everything else is on disk, and the file gets its name after
that: a file under its name is whole, or was damaged since.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.errors import DgppError

Array = npt.NDArray[Any]
Fold = Callable[[npt.NDArray[np.uint8]], int]

MAGIC, VERSION = b"DGPPIMG\0", 1
PAGE = 4096
CHUNK = 64 << 20
"""Bytes that are read at a time, and that share a checksum."""
DIRECT_FROM = 1 << 20
"""Smaller arrays go through the page cache."""
RESERVE = 1 << 30
"""Bytes of the disk that an image leaves free."""
READERS = 4
MOST_TABLE = 1 << 30
_HEAD = struct.Struct("<8sIQQI")
_DTYPES = {"uint8", "uint16", "uint32", "int32", "float16", "float32"}


class ImageError(DgppError):
    """An image that cannot be used; the message says why."""


class StoredArray(msgspec.Struct, frozen=True):
    """One array of the file: `at` and its length in bytes follow from it; `folds` per CHUNK."""

    dtype: str
    shape: tuple[int, ...]
    at: int
    folds: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class StoredTensor(msgspec.Struct, frozen=True):
    """A matrix or vector: `form`, `rows` and `columns` as its backend names them."""

    form: int
    rows: int
    columns: int
    arrays: tuple[StoredArray, ...]


class ImageTable(msgspec.Struct, frozen=True):
    """`facts` say what the image is of; `account` is what was read of the checkpoint for it."""

    facts: dict[str, str]
    tensors: tuple[StoredTensor, ...]
    account: tuple[int, int, int]
    digests: dict[str, bytes]


def flat(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous array, where they lie."""
    return array.reshape(-1).view(np.uint8)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _open_direct(path: Path, flags: int) -> int | None:
    """A descriptor that goes past the page cache, None where the file system has none."""
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise


def _direct_part(data: npt.NDArray[np.uint8], direct: int | None) -> int:
    """How many leading bytes may go past the page cache."""
    if direct is None or data.size < DIRECT_FROM or data.ctypes.data % PAGE:
        return 0
    return data.size // PAGE * PAGE


class ImageWriter:
    """Writes an image beside `path` and renames it at the end. OSError leaves nothing behind."""

    def __init__(self, path: Path, fold: Fold) -> None:
        self.path = path
        self._fold = fold
        self._draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def write(
        self,
        facts: Mapping[str, str],
        tensors: Sequence[tuple[int, int, int, Sequence[Array]]],
        account: tuple[int, int, int],
        digests: Mapping[str, bytes],
    ) -> int:
        """Bytes written. Raises OSError (ENOSPC also where the disk would be left too full)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        needed = PAGE + sum(_pages(array.nbytes) for _, _, _, held in tensors for array in held)
        free = os.statvfs(self.path.parent)
        if needed + RESERVE > free.f_bavail * free.f_frsize:
            raise OSError(errno.ENOSPC, f"{needed >> 20} MiB and {RESERVE >> 20} MiB of reserve")
        plain = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        direct = None
        try:
            direct = _open_direct(self._draft, os.O_WRONLY)
            self._plain, self._direct = plain, direct
            size = self._write_all(facts, tensors, account, digests)
            self._draft.rename(self.path)
            _sync(self.path.parent)
        except BaseException:
            self._draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(plain)
            if direct is not None:
                os.close(direct)
        return size

    def _sweep(self) -> None:
        """Remove what writers of this image left that are no more."""
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            writer = left.name.rsplit(".", 2)[1]
            if not (writer.isdigit() and Path(f"/proc/{writer}").exists()):
                left.unlink(missing_ok=True)

    def _write_all(
        self,
        facts: Mapping[str, str],
        tensors: Sequence[tuple[int, int, int, Sequence[Array]]],
        account: tuple[int, int, int],
        digests: Mapping[str, bytes],
    ) -> int:
        at, stored = PAGE, []
        for form, rows, columns, held in tensors:
            arrays = []
            for array in held:
                arrays.append(self._put(array, at))
                at += _pages(array.nbytes)
            stored.append(StoredTensor(form, rows, columns, tuple(arrays)))
        table = ImageTable(dict(facts), tuple(stored), account, dict(digests))
        encoded = msgspec.msgpack.encode(table)
        _write_at(self._plain, memoryview(encoded), at)
        os.fdatasync(self._plain)
        head = _HEAD.pack(MAGIC, VERSION, at, len(encoded), zlib.crc32(encoded))
        _write_at(self._plain, memoryview(head.ljust(PAGE, b"\0")), 0)
        os.fdatasync(self._plain)
        return at + len(encoded)

    def _put(self, array: Array, at: int) -> StoredArray:
        data = flat(array)
        folds = []
        for first in range(0, data.size, CHUNK):
            part = data[first : first + CHUNK]
            folds.append(self._fold(part))
            straight = _direct_part(part, self._direct)
            if straight and self._direct is not None:
                _write_at(self._direct, part[:straight].data, at + first)
            _write_at(self._plain, part[straight:].data, at + first + straight)
        return StoredArray(array.dtype.name, array.shape, at, tuple(folds))


def _write_at(file: int, data: memoryview, at: int) -> None:
    while data.nbytes:
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done


def _sync(directory: Path) -> None:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


class ImageReader:
    """An image whose head and table hold; arrays are checked while they are read.

    Raises ImageError naming what is wrong, FileNotFoundError where there is no such file.
    """

    def __init__(self, path: Path, fold: Fold) -> None:
        self.path = path
        self._fold = fold
        self._plain = os.open(path, os.O_RDONLY)
        self._direct: int | None = None
        try:
            self._size = os.fstat(self._plain).st_size
            self.table = self._read_table()
            self._direct = _open_direct(path, os.O_RDONLY)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; what was read stays."""
        for file in (self._plain, self._direct):
            if file is not None:
                os.close(file)
        self._direct = None

    def _read_table(self) -> ImageTable:
        head = os.pread(self._plain, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            raise ImageError(f"truncated: {self._size} bytes hold no head")
        magic, version, at, length, crc = _HEAD.unpack(head)
        if magic != MAGIC:
            raise ImageError("not a weight image, or never finished")
        if version != VERSION:
            raise ImageError(f"version {version} of the format, this is {VERSION}")
        if length > MOST_TABLE or at + length > self._size:
            raise ImageError(f"truncated: its table ends at {at + length}, it has {self._size}")
        encoded = os.pread(self._plain, length, at)
        if zlib.crc32(encoded) != crc:
            raise ImageError("damaged: its table does not have its checksum")
        try:
            table = msgspec.msgpack.decode(encoded, type=ImageTable)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ImageError(f"damaged: its table is none: {error}") from error
        for array in (array for tensor in table.tensors for array in tensor.arrays):
            if array.dtype not in _DTYPES or min(array.shape, default=0) < 0:
                raise ImageError("damaged: an array of its table is none")
            chunks = -(-array.bytes // CHUNK)
            if array.at < PAGE or array.at + array.bytes > at or len(array.folds) != chunks:
                raise ImageError("damaged: an array of its table is beyond it")
        return table

    def read(self, stored: StoredArray, out: Array, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Begin to fill `out`, which has the array's shape and dtype; the futures raise ImageError
        where what is read does not have its checksum."""
        data = flat(out)
        return [
            pool.submit(self._fill, stored.at + first, data[first : first + CHUNK], told)
            for first, told in zip(range(0, data.size, CHUNK), stored.folds, strict=True)
        ]

    def _fill(self, at: int, data: npt.NDArray[np.uint8], told: int) -> None:
        straight = _direct_part(data, self._direct)
        try:
            if straight and self._direct is not None:
                _read_at(self._direct, data[:straight].data, at)
            _read_at(self._plain, data[straight:].data, at + straight)
        except OSError as error:
            raise ImageError(f"cannot be read at byte {at}: {error.strerror}") from error
        if self._fold(data) != told:
            raise ImageError(f"damaged: bytes {at} … {at + data.size - 1} have another checksum")


def _read_at(file: int, out: memoryview, at: int) -> None:
    while out.nbytes:
        done = os.preadv(file, [out], at)
        if done == 0:
            raise ImageError(f"truncated at byte {at}")
        out, at = out[done:], at + done


@contextlib.contextmanager
def opened(path: Path, fold: Fold) -> Iterator[ImageReader]:
    """An ImageReader, closed at the end."""
    reader = ImageReader(path, fold)
    try:
        yield reader
    finally:
        reader.close()
