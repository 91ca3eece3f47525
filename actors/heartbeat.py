"""Liveness: every process bumps a shared word from a thread, and others watch it.

A process that is stopped, or whose interpreter is held for seconds, is as useless as a dead one
but has no exit to report. Watchers count their own looks, not time: when the whole machine pauses,
no watcher looks, and nobody is accused afterwards.

A process that a signal has stopped is known by its state, whatever it was busy with: it is named
sooner than one that merely gives no sign, and while it loads too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

BEAT_S = 0.1
STOPPED_S = 1.0
"""How long a process may be stopped by a signal. Shorter than any silence between ranks that ends a
world, so that the one that was stopped is named, and not those who missed it."""

_WORDS_PER_LINE = 8
_ACCUSED = 1

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

    def accuse(self, index: int) -> None:
        """Say that this process was found stopped; it reads so when it wakes."""
        self._words[index * _WORDS_PER_LINE + _ACCUSED] = 1

    def accused(self, index: int) -> bool:
        return bool(self._words[index * _WORDS_PER_LINE + _ACCUSED])

    def close(self) -> None:
        """Unmap the page; nobody may use it any more."""
        self._words.release()


class Standstill(NamedTuple):
    """A process gave no sign for `seconds`; `stopped`: a signal holds it."""

    seconds: float
    stopped: bool

    @property
    def words(self) -> str:
        """What to say of the process."""
        return "stopped responding" + (": a signal has stopped it" if self.stopped else "")


class HeartbeatWatch:
    """Looks at the word of process `pid` every `BEAT_S`."""

    def __init__(self, page: HeartbeatPage, index: int, pid: int) -> None:
        self._page = page
        self._index = index
        self._pid = pid
        self._seen = page.read(index)
        self._still = 0
        self._stopped = 0

    def look(self, limit_s: float) -> Standstill | None:
        """To be called once per `BEAT_S`: says so when there was no beat for `limit_s`, or for
        `STOPPED_S` where a signal has stopped the process."""
        seen = self._page.read(self._index)
        self._still = 0 if seen != self._seen else self._still + 1
        self._seen = seen
        self._stopped = self._stopped + 1 if self._still and is_stopped(self._pid) else 0
        stopped_s = self._stopped * BEAT_S
        if stopped_s >= STOPPED_S:
            return Standstill(stopped_s, stopped=True)
        still_s = self._still * BEAT_S
        return Standstill(still_s, stopped=False) if still_s >= limit_s else None


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; one that a debugger holds is not meant."""
    try:
        said = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # Behind the name, which may hold anything.
    return said[said.rfind(b")") + 2 :].startswith(b"T")


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
    told so and woken before: who is well enough to end the world in order does that.
    """
    supervisor = os.getppid()
    watch = HeartbeatWatch(page, SUPERVISOR, supervisor)
    said = f"{last_words}\n".encode()

    def look() -> None:
        standstill = watch.look(limit_s())
        if standstill is None:
            return
        if standstill.stopped and os.getppid() == supervisor:
            page.accuse(SUPERVISOR)
            os.kill(supervisor, signal.SIGCONT)
        if standstill.seconds >= limit_s():
            os.write(2, said)
            os._exit(status)

    return look
