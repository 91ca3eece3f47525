"""The folder of the disk tier's files: all that the tier asks of a file system."""

from __future__ import annotations

import errno
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from dgpp.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class ColdFile(Protocol):
    """One open file, `path` for messages. Every transfer says how many bytes it moved, which may
    be fewer than asked, and raises OSError where it fails."""

    path: Path

    def size(self) -> int: ...

    def read(self, out: memoryview, at: int) -> int: ...

    def write(self, data: memoryview, at: int) -> int: ...

    def resize(self, size: int) -> None: ...

    def set_aside(self, size: int) -> None:
        """Make the file `size` bytes long, all of them set aside on the disk."""

    def room(self) -> int:
        """Bytes of the disk that are free."""

    def close(self) -> None: ...


class ColdFolder(Protocol):
    """Where the files are, by name."""

    def path(self, name: str) -> Path:
        """For messages."""

    def claim(self, name: str) -> ColdFile:
        """A file for direct transfers that nobody else may have open, made where it is absent.
        Raises ConfigError."""

    def open(self, name: str, *, fresh: bool = False) -> ColdFile:
        """Any file, made where it is absent, emptied where it is to be `fresh`."""

    def rename(self, name: str, to: str) -> None: ...

    def remove(self, name: str) -> None:
        """No longer there, if it was."""


def unusable(error: OSError, path: Path) -> ConfigError:
    """Why the file at `path`, or what `error` names in its stead, cannot be used."""
    return ConfigError(f"nvme_cache.path: {error.filename or path}: {error.strerror or error}")


def _named(
    work: Callable[Concatenate[OsFile, P], T],
) -> Callable[Concatenate[OsFile, P], T]:
    """`work` of an open file, whose errors say which file it is: the system's do not."""

    @functools.wraps(work)
    def named(file: OsFile, /, *given: P.args, **more: P.kwargs) -> T:
        try:
            return work(file, *given, **more)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file.path)) from error

    return named


class OsFile:
    """A file of the operating system. Raises OSError with its path."""

    def __init__(self, file: int, path: Path) -> None:
        self.path = path
        self._file = file

    @_named
    def size(self) -> int:
        return os.fstat(self._file).st_size

    @_named
    def read(self, out: memoryview, at: int) -> int:
        return os.preadv(self._file, [out], at)

    @_named
    def write(self, data: memoryview, at: int) -> int:
        return os.pwrite(self._file, data, at)

    @_named
    def resize(self, size: int) -> None:
        os.ftruncate(self._file, size)

    @_named
    def set_aside(self, size: int) -> None:
        os.posix_fallocate(self._file, 0, size)

    @_named
    def room(self) -> int:
        disk = os.fstatvfs(self._file)
        return disk.f_bavail * disk.f_frsize

    def close(self) -> None:
        os.close(self._file)


class OsFolder:
    """A directory of the operating system, made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def path(self, name: str) -> Path:
        return self._path / name

    def claim(self, name: str) -> OsFile:
        path = self.path(name)
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                file = self._open(name, os.O_DIRECT)
            except OSError as error:
                # File systems in memory, among others, have no direct transfers.
                if error.errno != errno.EINVAL:
                    raise
                file = self._open(name)
        except OSError as error:
            raise unusable(error, path) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise ConfigError(f"nvme_cache.path: {path} is in use by another server") from error
        return OsFile(file, path)

    def open(self, name: str, *, fresh: bool = False) -> OsFile:
        return OsFile(self._open(name, os.O_TRUNC if fresh else 0), self.path(name))

    def rename(self, name: str, to: str) -> None:
        self.path(name).replace(self.path(to))

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def _open(self, name: str, flags: int = 0) -> int:
        return os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
