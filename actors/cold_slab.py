"""The disk tier's pages: one file per rank, every page written and read whole."""

from __future__ import annotations

import errno

from actors.cold_folder import ColdFile
from dgpp.errors import ConfigError

RESERVE = 1 << 30
"""Bytes of the disk that are left to others."""


class Slab:
    """`pages` pages of `page_bytes` in `file`, which is closed with it.

    Raises ConfigError where they do not fit the disk; OSError where a transfer fails.
    """

    def __init__(self, file: ColdFile, page_bytes: int, pages: int) -> None:
        self.page_bytes = page_bytes
        self.pages = pages
        self.warning = ""
        self._file = file
        size = page_bytes * pages
        try:
            if file.size() != size:
                file.resize(0)
                self._require(size)
                self._set_aside(size)
        except OSError as error:
            self.close()
            raise ConfigError(f"nvme_cache.path: {file.path}: {error.strerror}") from error
        except ConfigError:
            self.close()
            raise

    def write(self, page: int, data: memoryview) -> None:
        """`data` (one page, at the start of a page of memory) becomes page `page`."""
        at, end = page * self.page_bytes, len(data)
        done = 0
        while done < end:
            wrote = self._file.write(data[done:], at + done)
            if not wrote:
                raise OSError(f"page {page}: {done} of {end} bytes written")
            done += wrote

    def read(self, page: int, out: memoryview) -> None:
        """Fill `out` (one page, as in `write`) from page `page`."""
        got = self._file.read(out, page * self.page_bytes)
        if got != len(out):
            raise OSError(f"page {page}: {got} of {len(out)} bytes")

    def close(self) -> None:
        self._file.close()

    def _require(self, size: int) -> None:
        free = self._file.room()
        if size + RESERVE > free:
            raise ConfigError(
                f"nvme_cache.capacity_gib: {self._file.path} would take {size} bytes, {free} are "
                f"free and {RESERVE} stay for others"
            )

    def _set_aside(self, size: int) -> None:
        try:
            self._file.set_aside(size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._file.resize(size)
            self.warning = (
                f"{self._file.path}: {error.strerror}: {size} bytes are not set aside, the disk "
                "may fill up"
            )
