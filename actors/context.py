"""What an actor may ask of its surroundings: the same in a process, inline and simulated."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import numpy.typing as npt

from actors.channel import ChannelStatistics, Receiver, Sender
from actors.statistics import StatisticsBlock

T = TypeVar("T")
Look = Callable[[float], str | None]
Factory = Callable[[], asyncio.BaseProtocol]
ClockNs = Callable[[], int]


class RunBlocking(Protocol):
    """Runs a function that takes long, off the loop where others share it."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]: ...


class Host(Protocol):
    """What a placement does for the actors it hosts."""

    def report_failure(self, error: BaseException) -> None: ...

    def announce_loading(self, what: str | None) -> None: ...

    def request_end(self, why: str) -> None: ...

    def watch(self, look: Look) -> None: ...


class Connect(Protocol):
    """Has the protocol that `factory` makes speak over a stream: the connected socket `fd`."""

    def __call__(self, fd: int, factory: Factory) -> Awaitable[object]: ...


async def over_socket(fd: int, factory: Factory) -> object:
    """The socket itself, which the transport owns from now on."""
    loop = asyncio.get_running_loop()
    return await loop.create_connection(factory, sock=socket.socket(fileno=fd))


async def run_here(function: Callable[..., T], *args: Any) -> T:
    """A plain call: in a process of its own an actor blocks nobody else."""
    return function(*args)


class Context:
    """An actor's view of the world. `boot` is the role's own msgpack, opaque to the runtime.

    `statistics` is the actor's block; `peers` are the blocks of all roles of the rank, its own
    included, to be read only. `files` are the fds that the actor was handed, by name; they are its
    own to close.
    """

    def __init__(
        self,
        *,
        role: str,
        rank: int,
        boot: bytes,
        loop: asyncio.AbstractEventLoop,
        clock_ns: ClockNs,
        run_blocking: RunBlocking,
        senders: Mapping[str, Sender],
        receivers: Sequence[Receiver],
        peers: Mapping[str, StatisticsBlock],
        files: Mapping[str, int],
        host: Host,
        connect: Connect = over_socket,
    ) -> None:
        self.role = role
        self.rank = rank
        self.boot = boot
        self.loop = loop
        self.clock_ns = clock_ns
        self.run_blocking = run_blocking
        self.statistics = peers[role]
        self.peers = peers
        self.files = files
        self._senders = senders
        self._receivers = receivers
        self._host = host
        self._connect = connect
        self._tasks: set[asyncio.Task[None]] = set()
        self._world_failed = False

    def post(self, channel: str, message: Any, arrays: Sequence[npt.NDArray[Any]] = ()) -> None:
        """Send `message` on `channel` ("source>target"), `arrays` beside it in a shared slot.

        Never blocks: without room the message waits, and this actor takes no input until it is
        gone (channels with `always_drain` excepted). Arrays are copied before this returns.
        Raises KeyError (no such channel), MessageTypeError, MessageTooLargeError, ArraysError.
        After the world failed there is nobody to tell and it does nothing.
        """
        if not self._world_failed:
            self._senders[channel].post(message, arrays)

    def has(self, channel: str) -> bool:
        """Whether this actor sends on `channel`: not every rank has every role."""
        return channel in self._senders

    def congested(self, channel: str) -> bool:
        """True while messages of `channel` wait for room."""
        return self._senders[channel].congested

    def channel_statistics(self) -> dict[str, ChannelStatistics]:
        """This actor's end of each of its channels, by channel name."""
        ends: list[Sender | Receiver] = [*self._senders.values(), *self._receivers]
        return {end.name: end.statistics() for end in ends}

    def clock(self) -> float:
        """Monotonic time in seconds."""
        return self.clock_ns() / 1e9

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Call `callback(*args)` in `delay_s` seconds; an exception out of it ends the world."""
        return self.loop.call_later(delay_s, self._guarded, callback, args)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the message handlers; an exception out of it ends the world."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def connect(self, name: str, factory: Factory) -> None:
        """Have the protocol that `factory` makes speak over the stream socket in file `name`."""
        await self._connect(self.files[name], factory)

    def report_failure(self, error: BaseException) -> None:
        """End the world with `error` as its cause."""
        self._host.report_failure(error)

    def end_world(self, why: str) -> None:
        """End the world in order, as a signal would."""
        self._host.request_end(why)

    def watch(self, look: Look) -> None:
        """Have `look` called now and then, with the seconds since its last call: from a thread of
        its own where the actor has a process. What it returns, if anything, are the last words of
        an actor that must end at once, however it is stuck."""
        self._host.watch(look)

    @contextmanager
    def loading(self, what: str) -> Iterator[None]:
        """Announce work that may hold the interpreter for seconds (loading, compiling)."""
        self._host.announce_loading(what)
        try:
            yield
        finally:
            self._host.announce_loading(None)

    def close(self) -> None:
        """The world is over: cancel what `spawn` started and send nothing any more."""
        self._world_failed = True
        for task in self._tasks:
            task.cancel()

    def world_failed(self, cause: str) -> None:
        """Peers are gone: what waits for room is given up, and `post` does nothing any more."""
        self._world_failed = True
        for sender in self._senders.values():
            sender.peer_gone(cause)

    def _guarded(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - any failure of an actor ends the world
            self._host.report_failure(error)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.report_failure(error)
