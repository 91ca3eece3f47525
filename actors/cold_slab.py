"""The disk tier's pages: one file per rank, every page written and read whole."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

from dgpp.errors import ConfigError

RESERVE = 1 << 30
"""Bytes of the disk that are left to others."""


def aligned(size: int) -> memoryview:
    """`size` zero bytes at an address fit for direct transfers."""
    return memoryview(mmap.mmap(-1, size))


class Slab:
    """`pages` pages of `page_bytes` in the file `path`, which nobody else may have open.

    Past the page cache where the file system can. Raises ConfigError where the file cannot be
    opened, is in use or does not fit the disk; OSError where a transfer fails.
    """

    def __init__(self, path: Path, page_size: int, pages: int) -> None:
        self.page_bytes = page_size
        self.pages = pages
        self.warning = ""
        self._file = _open(path)
        size = page_size * pages
        try:
            if os.fstat(self._file).st_size != size:
                os.ftruncate(self._file, 0)
                self._require(path, size)
                self._allocate(path, size)
        except OSError as error:
            self.close()
            raise ConfigError(f"nvme_cache.path: {path}: {error.strerror}") from error
        except ConfigError:
            self.close()
            raise

    def write(self, page: int, data: memoryview) -> None:
        """`data` (one page, from `aligned`) becomes page `page`."""
        at, end = page * self.page_bytes, len(data)
        done = 0
        while done < end:
            done += os.pwrite(self._file, data[done:], at + done)

    def read(self, page: int, out: memoryview) -> None:
        """Fill `out` (one page, from `aligned`) from page `page`."""
        got = os.preadv(self._file, [out], page * self.page_bytes)
        if got != len(out):
            raise OSError(f"page {page}: {got} of {len(out)} bytes")

    def close(self) -> None:
        os.close(self._file)

    def _require(self, path: Path, size: int) -> None:
        disk = os.fstatvfs(self._file)
        free = disk.f_bavail * disk.f_frsize
        if size + RESERVE > free:
            raise ConfigError(
                f"nvme_cache.capacity_gib: {path} would take {size} bytes, {free} are free and "
                f"{RESERVE} stay for others"
            )

    def _allocate(self, path: Path, size: int) -> None:
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            os.ftruncate(self._file, size)
            self.warning = (
                f"{path}: {error.strerror}: {size} bytes are not set aside, the disk may fill up"
            )


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            file = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError:
            # File systems in memory, among others, have no direct transfers.
            file = os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"nvme_cache.path: {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise ConfigError(f"nvme_cache.path: {path} is in use by another server") from error
    return file
