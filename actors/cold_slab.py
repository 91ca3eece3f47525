"""The disk tier's pages: one file per rank, every page written and read whole."""

from __future__ import annotations

import errno

from actors.cold_folder import ColdFile, unusable
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
        self.path = file.path
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
            raise unusable(error, file.path) from error
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
                raise OSError(f"{self.path}: page {page}: {done} of {end} bytes written")
            done += wrote

    def read(self, page: int, out: memoryview) -> None:
        """Fill `out` (one page, as in `write`) from page `page`."""
        got = self._file.read(out, page * self.page_bytes)
        if got != len(out):
            raise OSError(f"{self.path}: page {page}: {got} of {len(out)} bytes")

    def close(self) -> None:
        self._file.close()

    def _require(self, size: int) -> None:
        free = self._file.room()
        if size + RESERVE > free:
            raise ConfigError(
                f"nvme_cache.capacity_gib: {self.path} would take {size} bytes, {free} are "
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
                f"{self.path}: {error.strerror}: {size} bytes are not set aside, the disk "
                "may fill up"
            )
