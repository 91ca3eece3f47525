"""Ctrl-C and its kin while something is under way that must be undone: noted, then acted upon."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dgpp.cluster.errors import ClusterError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDERR = 2


class StoppedError(ClusterError):
    """A signal came; `exit_status` is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; nothing was left running")
        self.exit_status = 128 + number


class Interruption:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self._number = 0

    def note(self, number: int) -> None:
        if not self._number:
            os.write(_STDERR, b"stopping: what was started is being ended\n")
        self._number = self._number or number

    def __bool__(self) -> bool:
        return self._number != 0

    def check(self) -> None:
        """Raises StoppedError if one has come."""
        if self._number:
            raise StoppedError(self._number)


@contextmanager
def noted() -> Iterator[Interruption]:
    """Signals that would end this process are noted while this lasts, those that it ignores are
    not. A request that is under way is so never cut in two: what it starts is known."""
    found = Interruption()
    with _heard(found.note):
        yield found


@contextmanager
def raised() -> Iterator[None]:
    """The first signal that would end this process is a StoppedError where it comes, so that what
    is half done is undone; later ones leave that its time."""
    found = Interruption()

    def stop(number: int) -> None:
        if not found:
            found.note(number)
            found.check()

    with _heard(stop):
        yield


@contextmanager
def _heard(hear: Callable[[int], None]) -> Iterator[None]:
    """`hear` instead of what signals do by themselves."""

    def handle(number: int, _frame: FrameType | None) -> None:
        hear(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
