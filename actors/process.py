"""One child process as its supervisor sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from actors import control
from actors.heartbeat import HeartbeatPage, HeartbeatWatch, Standstill
from actors.pidfd import PidfdWatch
from actors.spec import ChildSpec, write_spec
from actors.supervisor import Failure
from actors.topology import RoleSpec

_log = logging.getLogger("dgpp.supervisor")


class ChildProcess:
    """Starts the child at once. `on_failed` hears when it breaks: it said so, it ended unasked, or
    it ended badly when asked to stop. `on_asked` hears why it wants the world to end in order.
    `spoke`: it said itself how it broke, to whom it could."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        role: RoleSpec,
        spec: ChildSpec,
        control_end: socket.socket,
        page: HeartbeatPage,
        *,
        on_failed: Callable[[Failure], object],
        on_asked: Callable[[str], object],
    ) -> None:
        self.role = role
        self.who = spec.who
        self.ready = asyncio.Event()
        self.serving = asyncio.Event()
        self.drained = asyncio.Event()
        self.exited = asyncio.Event()
        self.broken = False
        self.spoke = False
        self._page = page
        self._index = spec.index
        self._loading = False
        self._stopping = False
        self._killed = False
        self._on_failed = on_failed
        self._on_asked = on_asked
        self._process = _execute(role, spec)
        self._watch = HeartbeatWatch(page, spec.index, self._process.pid)
        self._control = control.ControlChannel(
            loop, control_end, control.FromChild, self._hear, lambda: None
        )
        self._pidfd = PidfdWatch(loop, self._process.pid, self._ended)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: control.FromSupervisor) -> None:
        self._control.send(order)

    def stop(self) -> None:
        """Ask it to end; from now on its exit is expected."""
        self._stopping = True
        self._control.send(control.Stop())

    def kill(self) -> None:
        """End it without asking; its exit is no failure any more."""
        self._killed = True
        if not self.exited.is_set():
            self._process.kill()

    def look(self, stall_s: float, start_stall_s: float) -> Standstill | None:
        """Once per beat: that it stands still, when that is for too long. One that was told to end
        has its own time for that, but not while a signal stops it."""
        patient = self._loading or not self.ready.is_set()
        standstill = self._watch.look(start_stall_s if patient else stall_s)
        if standstill is None or self._killed or self.exited.is_set():
            return None
        return standstill if standstill.stopped or not self._stopping else None

    def lost(self, standstill: Standstill) -> None:
        """It stood still for too long: that breaks the world."""
        self.broken = True
        self._on_failed(Failure(f"{self.who} {standstill.words}", 2, standstill.seconds))

    def close(self) -> None:
        """Free its fds. The process has ended, or is killed and left to the kernel."""
        self._control.close()
        self._pidfd.close()

    def _hear(self, message: Any) -> None:
        match message:
            case control.Ready():
                self.ready.set()
                self._forgive()
            case control.Serving():
                self.serving.set()
            case control.Drained():
                self.drained.set()
            case control.Loading(what):
                self._loading = bool(what)
                if what:
                    _log.info("%s: %s", self.who, what)
                self._forgive()
            case control.Failed():
                self.broken = self.spoke = True
                cause = message.cause(self.who)
                self._on_failed(Failure(cause, message.exit_status, message.age_s))
            case control.End(why):
                self._on_asked(why)

    def _forgive(self) -> None:
        """What came before does not count by the rule that applies now."""
        self._watch = HeartbeatWatch(self._page, self._index, self._process.pid)

    def _ended(self) -> None:
        # What it said before it died is the better cause.
        self._control.receive()
        status = self._process.wait()
        self.exited.set()
        self.close()
        if self._killed or self.broken or (self._stopping and status == 0):
            return
        self.broken = True
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        self._on_failed(Failure(f"{self.who} {how}", 2))


def _execute(role: RoleSpec, spec: ChildSpec) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **role.environment}
    for name in role.unset:
        environment.pop(name, None)
    spec_fd = write_spec(spec)
    try:
        # A process group of its own keeps the terminal's Ctrl-C for the supervisor alone; -P keeps
        # the working directory off the import path.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "actors.child", spec.role, str(spec.rank), str(spec_fd)],
            env=environment,
            pass_fds=sorted(spec.fds() | {spec_fd}),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    finally:
        os.close(spec_fd)
