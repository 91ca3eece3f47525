"""Another rank of this host as the process that started it sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable

from actors.heartbeat import HeartbeatPage, HeartbeatWatch
from actors.pidfd import PidfdWatch
from actors.rank_spec import RankSpec, write_rank_spec
from actors.supervisor import SIGNALS, Failure

TOLD_S = 0.2
"""A rank that exits by itself has told rank 0's scheduler why: that cause goes first."""

_log = logging.getLogger("dgpp.ranks")


class RankProcess:
    """Starts the rank at once. `on_failed` hears when it ends unasked or stops responding,
    `on_asked` when somebody else asked it to end before it served."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: RankSpec,
        page: HeartbeatPage,
        on_failed: Callable[[Failure], object],
        on_asked: Callable[[str], object],
    ) -> None:
        self.rank = spec.rank
        self.exited = asyncio.Event()
        self._loop = loop
        self._page = page
        self._on_failed = on_failed
        self._on_asked = on_asked
        self._ending = False
        self._killed = False
        self._serving = False
        self._lost = False
        self._process = _execute(spec)
        self._watch = HeartbeatWatch(page, spec.rank, self._process.pid)
        self._pidfd = PidfdWatch(loop, self._process.pid, self._ended)

    @property
    def who(self) -> str:
        return f"rank {self.rank}"

    def serving(self) -> None:
        """The world serves: from now on a standstill is a failure soon."""
        self._serving = True
        self._watch = HeartbeatWatch(self._page, self.rank, self._process.pid)

    def ending(self) -> None:
        """The world ends: its exit is expected."""
        self._ending = True

    def kill(self) -> None:
        """End it without asking; its actors die with it."""
        self._killed = self._ending = True
        if not self.exited.is_set():
            self._process.kill()

    def look(self, stall_s: float, start_stall_s: float) -> None:
        """Once per beat: is it alive? While it ends it may take its time, unless it is stopped."""
        standstill = self._watch.look(stall_s if self._serving else start_stall_s)
        if standstill is None or self._lost or self._killed or self.exited.is_set():
            return
        if standstill.stopped or not self._ending:
            self._ending = self._lost = True
            cause = f"supervisor of {self.who} {standstill.words}"
            self._on_failed(Failure(cause, 2, standstill.seconds))

    def close(self) -> None:
        self._pidfd.close()

    def _ended(self) -> None:
        status = self._process.wait()
        self.exited.set()
        if self._killed:
            _log.info("%s did not end by itself and was killed", self.who)
            return
        said = f"exited with status {status}" if status >= 0 else f"was killed by signal {-status}"
        if self._ending or status >= 0:
            _log.log(logging.ERROR if status else logging.INFO, "%s %s", self.who, said)
        if self._ending:
            return
        self._ending = True
        asked = not self._serving and (status == 0 or -status in SIGNALS)
        if asked:
            self._on_asked(f"{self.who}: was asked to end: it {said}")
        elif status < 0:
            self._on_failed(Failure(f"{self.who} {said}", 2))
        else:
            self._loop.call_later(TOLD_S, self._on_failed, Failure(f"{self.who} {said}", 2))


def _execute(spec: RankSpec) -> subprocess.Popen[bytes]:
    spec_fd = write_rank_spec(spec)
    try:
        # A process group of its own keeps the terminal's Ctrl-C for rank 0 alone; -P keeps the
        # working directory off the import path.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "actors.rank", str(spec.rank), str(spec_fd)],
            pass_fds=sorted(spec.fds() | {spec_fd}),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    finally:
        os.close(spec_fd)
