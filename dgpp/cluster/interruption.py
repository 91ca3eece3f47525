"""Ctrl-C and its kin while something is under way that must be undone: noted, then acted upon."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dgpp.cluster.errors import ClusterError
from dgpp.errors import DgppError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STDERR = 2
LEFT_S = 3.0
"""What is interrupted gets to end by itself, where it may be left as it is."""
NOTHING_LEFT = "nothing was left running"


class StoppedError(ClusterError):
    """A signal came; `exit_status` is the shell's for it. `left` says what it leaves, `beside` what
    went wrong at the same time."""

    def __init__(self, number: int, left: str, beside: str = "") -> None:
        word = f"stopped by {signal.Signals(number).name}; {left}"
        super().__init__(f"{word}; meanwhile: {beside}" if beside else word)
        self.exit_status = 128 + number


class _Came(KeyboardInterrupt):
    """A signal, past all that catches errors; only `first` sees it."""


class Interruption:
    """Whether a signal has come. `left` is what is true of the work should it stop now."""

    def __init__(self, notice: str = "what was started is being ended") -> None:
        self._number = 0
        self._notice = notice
        self.held = False
        self.left = NOTHING_LEFT

    def note(self, number: int) -> None:
        if not self._number:
            os.write(_STDERR, f"stopping: {self._notice}\n".encode())
        self._number = self._number or number

    def __bool__(self) -> bool:
        return self._number != 0

    def check(self) -> None:
        """Raises StoppedError if one has come."""
        if self._number:
            raise StoppedError(self._number, self.left)

    @contextmanager
    def only_noted(self) -> Iterator[None]:
        """What is `raised` otherwise is noted while this lasts, and raised at its end."""
        self.held = True
        try:
            yield
        finally:
            self.held = False
        self.check()

    @contextmanager
    def first(self) -> Iterator[None]:
        """An error that comes when a signal has come is told beside it; `left` is what it is when
        all has been undone."""
        try:
            yield
        except (StoppedError, _Came) as error:
            raise StoppedError(self._number, self.left) from error
        except (DgppError, OSError) as error:
            if self._number:
                raise StoppedError(self._number, self.left, str(error)) from error
            raise


@contextmanager
def noted(found: Interruption) -> Iterator[None]:
    """Signals that would end this process are noted in `found` while this lasts, those that it
    ignores are not. A request that is under way is so never cut in two: what it starts is known.
    Raises StoppedError in place of what goes wrong after one."""
    with found.first(), _heard(found.note):
        yield


@contextmanager
def raised(
    found: Interruption,
    *,
    insist: bool = False,
    leave: Callable[[StoppedError], object] | None = None,
) -> Iterator[None]:
    """The first signal that would end this process is an exception where it comes, so that what is
    half done is undone, and a StoppedError in the end. Later ones leave that its time; with
    `insist`, where nothing must be undone, the next one ends the process there and then.

    `leave` is called, to end the process, where that has not ended after `LEFT_S`: threads of a
    download cannot be told to, and Python waits for them.
    """
    late: list[threading.Timer] = []

    def stop(number: int) -> None:
        if found:
            return
        found.note(number)
        if insist:
            _next_one_ends()
        if leave is not None:
            late.append(threading.Timer(LEFT_S, leave, [StoppedError(number, found.left)]))
            late[0].daemon = True
            late[0].start()
        if not found.held:
            raise _Came

    with found.first(), _heard(stop):
        try:
            yield
            # It is lost where it comes amid what cannot be left, as an import or a destructor.
            found.check()
        finally:
            for timer in late:
                timer.cancel()


def _next_one_ends() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


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
