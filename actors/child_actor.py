"""One actor on the loop of its own process, as its supervisor says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any, NoReturn

import uvloop

from actors import control
from actors.actor import Actor
from actors.context import Context, Look, run_here
from actors.dispatch import Dispatcher
from actors.heartbeat import BEAT_S, Heartbeat, HeartbeatPage, Watch, end_with_supervisor
from actors.memory import map_memfd
from actors.spec import ChildSpec, inherit_receiver, inherit_sender, read_spec
from actors.statistics import StatisticsBlock
from actors.titles import show_as, title
from actors.topology import resolve
from dgpp import log
from dgpp.errors import DgppError
from dgpp.imports import uncollected
from dgpp.parent import require_parent

_SPIN_MIN_CPUS = 3


class Child:
    """Runs one actor on the current loop and does what the supervisor says."""

    def __init__(
        self, spec: ChildSpec, loop: asyncio.AbstractEventLoop, watches: list[Watch]
    ) -> None:
        self._spec = spec
        self._watches = watches
        self._loop = loop
        self._built = False
        self._ready = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[int] = loop.create_future()
        self._control = control.ControlChannel(
            loop,
            socket.socket(fileno=spec.control),
            control.FromSupervisor,
            self._obey,
            lambda: self._finish(2),
        )
        self._actor: Actor
        self._context: Context
        self._dispatcher: Dispatcher

    async def run(self) -> int:
        """Returns the exit status."""
        try:
            self._build()
            await self._actor.start()
        except Exception as error:  # noqa: BLE001 - reported by name, ends the world
            self.report_failure(error)
        else:
            self._ready = True
            self._dispatcher.open()
            self._control.send(control.Ready())
        return await self._end

    def report_failure(self, error: BaseException) -> None:
        """Tell the supervisor, print the traceback (a named start-up error says all in its
        message), and exit. Only the first failure counts."""
        if self._end.done():
            return
        if not isinstance(error, DgppError) or (self._ready and error.traced):
            traceback.print_exception(error)
        if self._built:
            self._actor.broke(error)
        message = control.failed(error, exit_status=2 if self._ready else 1)
        self._control.send(message)
        self._finish(message.exit_status)

    def announce_loading(self, what: str | None) -> None:
        self._control.send(control.Loading(what or ""))

    def request_end(self, why: str) -> None:
        self._control.send(control.End(why))

    def watch(self, look: Look) -> None:
        self._watches.append(partial(_end_with_last_words, look))

    def _build(self) -> None:
        spec = self._spec
        receivers = [inherit_receiver(channel) for channel in spec.inbound]
        senders = [inherit_sender(channel) for channel in spec.outbound]
        self._context = Context(
            role=spec.role,
            rank=spec.rank,
            boot=spec.boot,
            loop=self._loop,
            clock_ns=time.monotonic_ns,
            run_blocking=run_here,
            senders={sender.name: sender for sender in senders},
            receivers=receivers,
            peers={
                block.role: StatisticsBlock(map_memfd(block.fd), block.metrics)
                for block in spec.statistics
            },
            files=spec.files,
            host=self,
        )
        spins = len(os.sched_getaffinity(0)) >= _SPIN_MIN_CPUS
        with uncollected(for_good=True):
            actor = resolve(spec.actor)
        self._actor = actor(self._context)
        self._built = True
        self._dispatcher = Dispatcher(
            loop=self._loop,
            deliver=self._actor.receive,
            receivers=receivers,
            senders=senders,
            on_failure=self.report_failure,
            spin_ns=1000 * max((r.spec.spin_us for r in receivers), default=0) if spins else 0,
        )
        self._loop.add_reader(spec.doorbell, self._doorbell)

    def _doorbell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._spec.doorbell)
        self._dispatcher.ring_doorbell()

    def _obey(self, order: Any) -> None:
        match order:
            case control.Serve():
                self._do(self._serve())
            case control.Drain(timeout_s):
                self._do(self._drain(timeout_s))
            case control.Fail(cause, code, age_s):
                self._do(self._fail(cause, code, age_s))
            case control.Stop():
                self._do(self._stop())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.report_failure(error)

    async def _serve(self) -> None:
        await self._actor.serve()
        self._control.send(control.Serving())

    async def _drain(self, timeout_s: float) -> None:
        await self._actor.drain(timeout_s)
        self._control.send(control.Drained())

    async def _fail(self, cause: str, code: str, age_s: float) -> None:
        self._context.world_failed(cause)
        self._dispatcher.close()
        await self._actor.fail(cause, code, age_s)
        self._finish(2)

    async def _stop(self) -> None:
        self._dispatcher.close()
        self._context.close()
        await self._actor.stop()
        self._finish(0)

    def _finish(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)


def _end_with_last_words(look: Look) -> None:
    """As in `end_with_supervisor`: the rest of the process may hold any lock."""
    if (last_words := look(BEAT_S)) is not None:
        os.write(2, f"{last_words}\n".encode())
        os._exit(2)


async def _run(spec: ChildSpec, watches: list[Watch]) -> int:
    return await Child(spec, asyncio.get_running_loop(), watches).run()


def run_child(spec_fd: int) -> NoReturn:
    """Threads of libraries must not hold up the exit: it is this that ends the process."""
    spec = read_spec(spec_fd)
    require_parent(spec.parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log.tell_where_on_request()
    show_as(title(spec.role, spec.rank))
    for fd in spec.fds():
        os.set_inheritable(fd, False)
    page = HeartbeatPage(map_memfd(spec.heartbeat))
    last_words = f"{spec.who}: the supervisor stopped responding"
    watches = [end_with_supervisor(page, last_words, lambda: spec.supervisor_stall_s)]
    Heartbeat(page, spec.index, watches).start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(_run(spec, watches))
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
