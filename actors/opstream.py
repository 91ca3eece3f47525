"""The operation stream of one rank as a file: what every rank decided, line by line, to compare."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from actors.boot import Boot
from dgpp.errors import ConfigError

SEGMENT_BYTES = 64 << 20
"""A full file becomes NAME.1, and the one before it is gone: the last decisions tell the story."""

_log = logging.getLogger("dgpp.scheduler")


class OpStreamFile:
    """`serve_rank<r>.ops`: lines as `dgpp.sched.operations` makes them, written as they come.

    A disk that fails is named once in the log and written to no more; serving goes on.
    Raises ConfigError where the file cannot be had.
    """

    def __init__(self, path: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._path = path
        self._segment_bytes = segment_bytes
        self._size = 0
        self._lock = self._fd = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._fd = self._begin()
        except BlockingIOError as error:
            self.close()
            raise ConfigError(
                f"paths.log_dir: {path} is being written by another deployment"
            ) from error
        except OSError as error:
            self.close()
            raise ConfigError(f"paths.log_dir: {path}: {error.strerror}") from error

    @classmethod
    def of(cls, boot: Boot) -> OpStreamFile:
        """The file of this rank."""
        folder = Path(boot.settings.paths.log_dir).expanduser()
        return cls(folder / f"serve_rank{boot.rank}.ops")

    def write(self, text: bytes) -> None:
        """Append whole lines."""
        if self._fd < 0:
            return
        try:
            if self._size and self._size + len(text) > self._segment_bytes:
                os.close(self._fd)
                self._fd = -1
                self._path.replace(self._path.with_suffix(".ops.1"))
                self._fd = self._begin()
            written = os.write(self._fd, text)
            if written < len(text):
                raise OSError(0, f"{written} of {len(text)} bytes were written")
            self._size += written
        except OSError as error:
            _log.error("%s: %s; it is written no more", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        """Nothing more is written."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _begin(self) -> int:
        self._size = 0
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
