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
from actors.supervisor import Failure

TOLD_S = 0.2
"""A rank that exits by itself has told rank 0's scheduler why: that cause goes first."""

_log = logging.getLogger("dgpp.ranks")


class RankProcess:
    """Starts the rank at once. `on_failed` hears when it ends unasked or stops responding."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spec: RankSpec,
        page: HeartbeatPage,
        on_failed: Callable[[Failure], object],
    ) -> None:
        self.rank = spec.rank
        self.exited = asyncio.Event()
        self._loop = loop
        self._page = page
        self._on_failed = on_failed
        self._ending = False
        self._killed = False
        self._serving = False
        self._watch = HeartbeatWatch(page, spec.rank)
        self._process = _execute(spec)
        self._pidfd = PidfdWatch(loop, self._process.pid, self._ended)

    @property
    def who(self) -> str:
        return f"rank {self.rank}"

    def serving(self) -> None:
        """The world serves: from now on a standstill is a failure soon."""
        self._serving = True
        self._watch = HeartbeatWatch(self._page, self.rank)

    def ending(self) -> None:
        """The world ends: its exit is expected."""
        self._ending = True

    def kill(self) -> None:
        """End it without asking; its actors die with it."""
        self._killed = self._ending = True
        if not self.exited.is_set():
            self._process.kill()

    def look(self, stall_s: float, start_stall_s: float) -> None:
        """Once per beat: is it alive?"""
        still_s = self._watch.look()
        if not self._ending and still_s >= (stall_s if self._serving else start_stall_s):
            self._ending = True
            self._on_failed(Failure(f"supervisor of {self.who} stopped responding", 2, still_s))

    def close(self) -> None:
        self._pidfd.close()

    def _ended(self) -> None:
        status = self._process.wait()
        self.exited.set()
        killed = f"{self.who} was killed by signal {-status}"
        exited = f"{self.who} exited with status {status}"
        _log.log(
            logging.INFO if status == 0 or self._killed else logging.ERROR,
            "%s",
            killed if status < 0 else exited,
        )
        if self._ending:
            return
        self._ending = True
        if status < 0:
            self._on_failed(Failure(killed, 2))
        else:
            self._loop.call_later(TOLD_S, self._on_failed, Failure(exited, 2))


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
