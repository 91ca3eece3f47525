"""The placement with all actors of a rank on one loop: small machines, debugging, simulation.

The same rings and slots as between processes, in private memory; a doorbell is a `call_soon`.
Given a loop and a clock it reads no time of its own, so a simulated loop makes it deterministic.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

from actors import control
from actors.actor import Actor
from actors.channel import Receiver, Sender, open_receiver, open_sender
from actors.context import ClockNs, Connect, Context, Look, RunBlocking, T, over_socket
from actors.dispatch import Dispatcher
from actors.memory import local_memory
from actors.ring import Wake, format_ring, ring_memory_bytes
from actors.slots import slots_memory_bytes
from actors.spec import who
from actors.statistics import StatisticsBlock, block_bytes
from actors.supervisor import Failure
from actors.topology import ChannelSpec, RoleSpec, Topology, resolve
from dgpp.errors import DgppError, WorldFailedError

WATCH_S = 1.0
_LINE = 64


class _Mapping:
    """One mapping, of which `take` gives out piece after piece: most are far below a page."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self._memory = local_memory(sum(map(_whole_lines, sizes)))
        self._given = 0

    def take(self, size: int) -> memoryview:
        start, self._given = self._given, self._given + _whole_lines(size)
        return self._memory[start : start + size]


def _whole_lines(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _channel_sizes(spec: ChannelSpec) -> Iterator[int]:
    yield ring_memory_bytes(spec.ring_bytes)
    if spec.slots:
        yield slots_memory_bytes(spec.slot_bytes, spec.slots)


def local_channel(
    spec: ChannelSpec,
    wake_source: Wake,
    wake_target: Wake,
    take: Callable[[int], memoryview] = local_memory,
) -> tuple[Sender, Receiver]:
    """Both ends of a channel in private memory, of which `take` gives so many zeroed bytes."""
    ring, slots = (*map(take, _channel_sizes(spec)), None)[:2]
    assert ring is not None
    format_ring(ring)
    return open_sender(spec, ring, slots, wake_target), open_receiver(
        spec, ring, slots, wake_source
    )


async def run_in_thread(function: Callable[..., T], *args: Any) -> T:
    """A worker thread: other actors share the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


class _ActorHost:
    """One actor's way to tell its world something."""

    def __init__(self, world: InlineWorld, role: str) -> None:
        self._world = world
        self._role = role

    def report_failure(self, error: BaseException) -> None:
        self._world.report_failure(self._role, error)

    def announce_loading(self, what: str | None) -> None:
        """Nobody watches: all actors share one process."""

    def request_end(self, why: str) -> None:
        self._world.request_end(why)

    def watch(self, look: Look) -> None:
        self._world.watch(self._role, look)


class InlineWorld:
    """A World (see supervisor.py) on one loop.

    A simulation builds one per rank on its own loop, with its clock and `run_blocking=run_here`,
    awaits `start()` and reaches into `actors`; `failure` says what broke.
    """

    def __init__(
        self,
        topology: Topology,
        boot: Mapping[str, bytes],
        *,
        loop: asyncio.AbstractEventLoop,
        clock_ns: ClockNs = time.monotonic_ns,
        run_blocking: RunBlocking = run_in_thread,
        connect: Connect = over_socket,
    ) -> None:
        topology.validate()
        self.topology = topology
        self.failure: asyncio.Future[Failure] = loop.create_future()
        self.asked: asyncio.Future[str] = loop.create_future()
        self.actors: dict[str, Actor] = {}
        self.contexts: dict[str, Context] = {}
        self.dispatchers: dict[str, Dispatcher] = {}
        self._ready = False
        self._started: set[str] = set()
        self._broken: str | None = None
        self._boot = boot
        self._loop = loop
        self._clock_ns = clock_ns
        self._run_blocking = run_blocking
        self._connect = connect
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        blocks = {role.role: block_bytes(role.statistics) for role in topology.roles}
        rings = chain.from_iterable(map(_channel_sizes, topology.channels))
        memory = _Mapping([*blocks.values(), *rings])
        self._statistics = {
            role.role: StatisticsBlock(memory.take(blocks[role.role]), role.statistics)
            for role in topology.roles
        }
        for spec in topology.channels:
            self._senders[spec.name], self._receivers[spec.name] = local_channel(
                spec, self._doorbell(spec.source), self._doorbell(spec.target), memory.take
            )

    async def start(self) -> None:
        """Starts the actors one after the other, in the topology's order; then all serve.

        A failing one sets `failure` and this never returns: whoever waits also watches `failure`.
        """
        for role in self.topology.roles:
            await self._step(role.role, partial(self._start, role))
        self._ready = True
        for role in self.topology.roles:
            await self._step(role.role, self.actors[role.role].serve)

    async def drain(self, timeout_s: float) -> None:
        for role in reversed(self.topology.roles):
            if role.faces_outside:
                drain = self.actors[role.role].drain
                await self._step(role.role, partial(drain, timeout_s))

    async def stop(self) -> None:
        for role in reversed(self.topology.roles):
            self.dispatchers[role.role].close()
            self.contexts[role.role].close()
            stopping = self._step(role.role, self.actors[role.role].stop)
            try:
                await asyncio.wait_for(stopping, role.shutdown_s)
            except TimeoutError:
                continue

    async def fail(self, failure: Failure, code: str, grace_s: float) -> None:
        for role, context in self.contexts.items():
            context.world_failed(failure.cause)
            self.dispatchers[role].close()
        facing = [
            self._loop.create_task(self.actors[role.role].fail(failure.cause, code, failure.age_s))
            for role in self.topology.roles
            if role.faces_outside and role.role in self._started and role.role != self._broken
        ]
        if facing:
            _, late = await asyncio.wait(facing, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*facing, return_exceptions=True)

    def mute(self, role: str) -> bool:
        return role not in self._started and role != self._broken

    async def kill(self) -> None:
        for role, context in self.contexts.items():
            context.close()
            self.dispatchers[role].close()

    def report_failure(self, role: str, error: BaseException) -> None:
        """`role` broke with `error`; only the first counts."""
        if self.failure.done():
            return
        if not isinstance(error, DgppError) or (self._ready and error.traced):
            traceback.print_exception(error)
        said = control.failed(error, exit_status=2 if self._ready else 1)
        if (actor := self.actors.get(role)) is not None:
            actor.broke(error)
        self._broken = role
        cause = said.cause(who(role, self.topology.rank))
        self.failure.set_result(Failure(cause, said.exit_status, said.age_s))

    def request_end(self, why: str) -> None:
        """Only the first reason counts."""
        if not self.asked.done():
            self.asked.set_result(why)

    def watch(self, role: str, look: Look) -> None:
        """Call `look` from a timer: of all that hangs, only a waiting actor can be named here."""
        if (last_words := look(WATCH_S)) is not None:
            self.report_failure(role, WorldFailedError(last_words))
        elif not self.failure.done():
            self._loop.call_later(WATCH_S, self.watch, role, look)

    async def _start(self, role: RoleSpec) -> None:
        name = role.role
        host = _ActorHost(self, name)
        senders = {s.name: s for s in self._senders.values() if s.spec.source == name}
        receivers = [r for r in self._receivers.values() if r.spec.target == name]
        context = Context(
            role=name,
            rank=self.topology.rank,
            boot=self._boot.get(name, b""),
            loop=self._loop,
            clock_ns=self._clock_ns,
            run_blocking=self._run_blocking,
            senders=senders,
            receivers=receivers,
            peers=self._statistics,
            files=role.files,
            connect=self._connect,
            host=host,
        )
        actor: Actor = resolve(role.actor)(context)
        dispatcher = Dispatcher(
            loop=self._loop,
            deliver=actor.receive,
            receivers=receivers,
            senders=list(senders.values()),
            on_failure=host.report_failure,
        )
        self.actors[name] = actor
        self.contexts[name] = context
        self.dispatchers[name] = dispatcher
        await actor.start()
        self._started.add(name)
        dispatcher.open()

    async def _step(self, role: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - reported by name, ends the world
            self.report_failure(role, error)
            await self._loop.create_future()

    def _doorbell(self, role: str) -> Wake:
        def ring() -> None:
            # Before the actor is built its messages wait in the ring.
            if (dispatcher := self.dispatchers.get(role)) is not None:
                dispatcher.schedule()

        return ring
