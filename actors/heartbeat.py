"""Liveness: every process bumps a shared word from a thread, and others watch it.

A process that is stopped, or whose interpreter is held for seconds, is as useless as a dead one
but has no exit to report. Watchers count their own looks, not time: when the whole machine pauses,
no watcher looks, and nobody is accused afterwards.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

BEAT_S = 0.1
_WORDS_PER_LINE = 8

SUPERVISOR = 0

Watch = Callable[[], object]


def heartbeat_bytes(processes: int) -> int:
    """Size of the page for the supervisor (index 0) and its children (1 ...)."""
    return 64 * (processes + 1)


class HeartbeatPage:
    """The words of all processes, each alone in its 64-byte line."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("B").cast("Q")

    def beat(self, index: int) -> None:
        self._words[index * _WORDS_PER_LINE] += 1

    def read(self, index: int) -> int:
        return self._words[index * _WORDS_PER_LINE]

    def close(self) -> None:
        """Unmap the page; nobody may use it any more."""
        self._words.release()


class HeartbeatWatch:
    """Looks at one word every `BEAT_S`; says for how many seconds of looks it stood still."""

    def __init__(self, page: HeartbeatPage, index: int) -> None:
        self._page = page
        self._index = index
        self._seen = page.read(index)
        self._still = 0

    def look(self) -> float:
        """To be called once per `BEAT_S`. Returns the seconds without a beat so far."""
        seen = self._page.read(self._index)
        self._still = 0 if seen != self._seen else self._still + 1
        self._seen = seen
        return self._still * BEAT_S


class Heartbeat:
    """The daemon thread that bumps one word, and calls each of `watches` every time."""

    def __init__(self, page: HeartbeatPage, index: int, watches: Sequence[Watch] = ()) -> None:
        self._page = page
        self._index = index
        self._watches = watches
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._page.beat(self._index)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._page.beat(self._index)
            for watch in tuple(self._watches):
                watch()


def end_with_supervisor(
    page: HeartbeatPage, last_words: str, limit_s: Callable[[], float], status: int = 2
) -> Watch:
    """A watch for children: ends this process when the supervisor stands still for `limit_s()`.

    `os._exit` and a raw write: the rest of the process may hold any lock. A stopped supervisor is
    woken, so that it sees its children's end and can end too, with its own status.
    """
    watch = HeartbeatWatch(page, SUPERVISOR)
    supervisor = os.getppid()
    said = f"{last_words}\n".encode()

    def look() -> None:
        if watch.look() > limit_s():
            os.write(2, said)
            if os.getppid() == supervisor:
                os.kill(supervisor, signal.SIGCONT)
            os._exit(status)

    return look
