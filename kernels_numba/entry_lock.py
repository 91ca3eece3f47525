"""One process makes what many want of a cache on disk: the others wait for it, but not for ever."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

WAIT_S = 120.0
"""After so long whoever waits makes the entry itself: more than any entry takes."""

_LOOK_S = 0.02


def hold(path: Path, wait_s: float = WAIT_S) -> int | None:
    """Wait until nobody else holds the lock of the entry at `path`.

    Returns the file descriptor that holds it until it is closed, or None where the time was up or
    the folder takes no lock. A process that dies holds nothing.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(_LOOK_S)
                continue
            os.close(lock)
            return None
        except OSError:
            os.close(lock)
            return None
        return lock


def let_go(lock: int | None) -> None:
    """Let others in that wait for what `hold` gave."""
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """`hold` for as long as the block takes."""
    lock = hold(path)
    try:
        yield
    finally:
        let_go(lock)
