"""The placement with every actor in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

from actors import control
from actors.heartbeat import BEAT_S, SUPERVISOR, Heartbeat, HeartbeatPage, heartbeat_bytes
from actors.memory import create_memfd, map_memfd
from actors.process import ChildProcess
from actors.ring import format_ring, ring_memory_bytes
from actors.slots import slots_memory_bytes
from actors.spec import ChannelFds, ChildSpec, StatisticsFd, channel_fds
from actors.statistics import block_bytes
from actors.supervisor import Failure, Settings, own_standstill
from actors.topology import ChannelSpec, RoleSpec, Topology

_REAP_S = 1.0


class _Wiring:
    """The fds of a world while its children are being started; each inherits what it needs."""

    def __init__(self, topology: Topology, fds: contextlib.ExitStack) -> None:
        self._fds = fds
        self.heartbeat = self._memfd("dgpp-heartbeat", heartbeat_bytes(len(topology.roles)))
        self.doorbells = {role.role: self._eventfd() for role in topology.roles}
        self.statistics = tuple(
            StatisticsFd(
                role.role,
                role.statistics,
                self._memfd(f"dgpp-statistics-{role.role}", block_bytes(role.statistics)),
            )
            for role in topology.roles
        )
        self._rings = {channel.name: self._ring(channel) for channel in topology.channels}
        self._slots = {channel.name: self._slot_pool(channel) for channel in topology.channels}

    def channel(self, spec: ChannelSpec, peer: str) -> ChannelFds:
        doorbell = self.doorbells[peer]
        return channel_fds(spec, self._rings[spec.name], self._slots[spec.name], doorbell)

    def control(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = control.control_pair()
        self._fds.enter_context(theirs)
        return ours, theirs

    def _ring(self, spec: ChannelSpec) -> int:
        fd = self._memfd(f"dgpp-ring-{spec.name}", ring_memory_bytes(spec.ring_bytes))
        with map_memfd(fd) as memory:
            format_ring(memory)
        return fd

    def _slot_pool(self, spec: ChannelSpec) -> int:
        if not spec.slots:
            return -1
        size = slots_memory_bytes(spec.slot_bytes, spec.slots)
        return self._memfd(f"dgpp-slots-{spec.name}", size)

    def _memfd(self, name: str, size: int) -> int:
        fd = create_memfd(name, size)
        self._fds.callback(os.close, fd)
        return fd

    def _eventfd(self) -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds.callback(os.close, fd)
        return fd


class ProcessWorld:
    """A World (see supervisor.py) of child processes.

    `boot` holds each role's own msgpack; a role without an entry gets none. Build and run it in
    the main thread: the kernel kills the children when the thread that started them ends.
    """

    def __init__(self, topology: Topology, boot: Mapping[str, bytes], settings: Settings) -> None:
        topology.validate()
        self.topology = topology
        self.failure: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.children: list[ChildProcess] = []
        self._boot = boot
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._page: HeartbeatPage | None = None
        self._heartbeat: Heartbeat | None = None
        self._look_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Imports and loads of all children overlap; then all open their doors."""
        with contextlib.ExitStack() as fds:
            wiring = _Wiring(self.topology, fds)
            page = self._page = HeartbeatPage(map_memfd(wiring.heartbeat))
            self._heartbeat = Heartbeat(page, SUPERVISOR)
            self._heartbeat.start()
            for index, role in enumerate(self.topology.roles, start=1):
                self.children.append(self._start_child(role, index, wiring, page))
        self._look_timer = self._loop.call_later(BEAT_S, self._look)
        for child in self.children:
            await child.ready.wait()
        for child in self.children:
            child.send(control.Serve())
            await child.serving.wait()

    async def drain(self, timeout_s: float) -> None:
        for child in reversed(self.children):
            if child.role.faces_outside:
                child.send(control.Drain(timeout_s))
                await child.drained.wait()

    async def stop(self) -> None:
        for child in reversed(self.children):
            child.stop()
            try:
                await asyncio.wait_for(child.exited.wait(), child.role.shutdown_s)
            except TimeoutError:
                child.kill()
                await child.exited.wait()

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        facing = self._facing()
        for child in self.children:
            if child not in facing:
                child.kill()
        for child in facing:
            child.send(control.Fail(failure.cause, code, failure.age_s))
        await _all_exited(facing, grace_s)

    def mute(self, role: str) -> bool:
        for child in self.children:
            if child.role.role == role:
                return not (child.spoke or child in self._facing())
        return True

    async def kill(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        for child in self.children:
            child.kill()
        await _all_exited(self.children, _REAP_S)
        for child in self.children:
            child.close()
        if self._heartbeat is not None and self._page is not None:
            self._heartbeat.stop()
            self._page.close()

    def _facing(self) -> list[ChildProcess]:
        """Those who face outside and are able to tell what happened."""
        return [
            child
            for child in self.children
            if child.role.faces_outside
            and child.ready.is_set()
            and not (child.broken or child.exited.is_set())
        ]

    def _start_child(
        self, role: RoleSpec, index: int, wiring: _Wiring, page: HeartbeatPage
    ) -> ChildProcess:
        ours, theirs = wiring.control()
        channels = self.topology.channels
        spec = ChildSpec(
            role=role.role,
            rank=self.topology.rank,
            actor=role.actor,
            boot=self._boot.get(role.role, b""),
            parent_pid=os.getpid(),
            index=index,
            supervisor_stall_s=self._settings.supervisor_stall_s,
            control=theirs.fileno(),
            heartbeat=wiring.heartbeat,
            doorbell=wiring.doorbells[role.role],
            outbound=tuple(wiring.channel(c, c.target) for c in channels if c.source == role.role),
            inbound=tuple(wiring.channel(c, c.source) for c in channels if c.target == role.role),
            statistics=wiring.statistics,
            files=role.files,
        )
        return ChildProcess(
            self._loop, role, spec, ours, page, on_failed=self._fail, on_asked=self._ask
        )

    def _ask(self, why: str) -> None:
        if not self.asked.done():
            self.asked.set_result(why)

    def _fail(self, failure: Failure) -> None:
        if not self.failure.done():
            self.failure.set_result(failure)

    def _look(self) -> None:
        self._look_timer = self._loop.call_later(BEAT_S, self._look)
        if self._page is not None and self._page.accused(SUPERVISOR):
            self._fail(own_standstill(self.topology.rank))
        for child in self.children:
            standstill = child.look(self._settings.stall_s, self._settings.start_stall_s)
            if standstill is not None:
                child.lost(standstill)


async def _all_exited(children: list[ChildProcess], timeout_s: float) -> None:
    """Returns when all have exited or the time is up."""
    waits = [asyncio.ensure_future(child.exited.wait()) for child in children]
    if waits:
        _, pending = await asyncio.wait(waits, timeout=timeout_s)
        for wait in pending:
            wait.cancel()
