"""Delivers an actor's inbound messages: in order, fairly over its channels, one at a time.

One doorbell per actor: peers ring it for a new frame and for new room alike. It leads to one
round, straight from the loop's callback: first what this actor could not send, then up to `_BATCH`
messages of each channel; the rest of a longer backlog follows in later turns of the loop, so that
sockets and timers get theirs.

An actor takes no input while it has unsent output, nor while an async handler runs. So what waits
unsent is bounded by what one handler posts, and a stream of work presses back to its source.
Channels declared `always_drain` are exempt: where two actors feed each other, one of them must
always read, or both wait for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Protocol

from actors.channel import NO_ARRAYS, Arrays, Receiver, Sender
from actors.errors import ChannelError
from actors.fence import full_fence
from actors.ring import RingReader

_BATCH = 8


class Deliver(Protocol):
    """An actor's `receive`."""

    def __call__(self, channel: str, message: Any, arrays: Arrays, /) -> Awaitable[None] | None: ...


class Dispatcher:
    """Joins one actor's receivers, senders and handler on one loop.

    `on_failure` hears the first error of a handler or channel, after which nothing is delivered.
    `spin_ns`: how long to poll before sleeping (0 where the clock is not the machine's).
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        deliver: Deliver,
        receivers: Sequence[Receiver],
        senders: Sequence[Sender],
        on_failure: Callable[[BaseException], object],
        spin_ns: int = 0,
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._receivers = list(receivers)
        self._senders = list(senders)
        self._unsent = [sender.unsent for sender in senders]
        self._asleep: list[RingReader] = []
        self._on_failure = on_failure
        self._spin_ns = spin_ns
        self._scheduled = False
        self._open = False
        self._handler: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Start delivering; what arrived before waits in the rings."""
        self._open = True
        self._schedule()

    def close(self) -> None:
        """Deliver nothing more; cancels a running async handler."""
        self._open = False
        if self._handler is not None:
            self._handler.cancel()

    def ring_doorbell(self) -> None:
        """A peer sent something or made room."""
        if self._open and not self._scheduled:
            self._round()

    def schedule(self) -> None:
        """As `ring_doorbell`, from another actor's turn on the same loop."""
        if self._open:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._open:
            self._round()

    def _round(self) -> None:
        try:
            if any(self._unsent):
                for sender in self._senders:
                    sender.flush()
            for ring in self._asleep:
                ring.set_asleep(False)
            self._asleep.clear()
            backlog = False
            for receiver in tuple(self._receivers):
                delivered = self._drain(receiver)
                if delivered:
                    # Who was served last is asked last: a handler that blocks after each message
                    # (congestion, awaiting) must not leave the same channel first for ever.
                    self._receivers.remove(receiver)
                    self._receivers.append(receiver)
                backlog |= delivered == _BATCH
            if self._open and (backlog or self._found_while_falling_asleep()):
                self._schedule()
        except Exception as error:  # noqa: BLE001 - any failure of an actor ends the world
            self._fail(error)

    def _drain(self, receiver: Receiver) -> int:
        """Deliver up to a batch; returns how many."""
        always, unsent = receiver.always_drain, self._unsent
        for delivered in range(_BATCH):
            if not self._open or not (always or (self._handler is None and not any(unsent))):
                return delivered
            taken = receiver.take()
            if taken is None:
                return delivered
            self._handle(receiver, *taken)
        return _BATCH

    def _handle(self, receiver: Receiver, message: Any, arrays: Arrays) -> None:
        pending = self._deliver(receiver.name, message, arrays)
        if pending is None:
            if arrays is not NO_ARRAYS and not arrays.retained:
                arrays.release()
            return
        if receiver.always_drain:
            asyncio.ensure_future(pending, loop=self._loop).cancel()
            raise ChannelError(
                f"channel {receiver.name} is always drained: its handler returned an awaitable"
            )
        # The handler itself, not a wrapper around it: one that is cancelled before it began would
        # leave the handler behind, never awaited.
        if type(pending) is CoroutineType:
            self._handler = self._loop.create_task(pending)
        else:
            self._handler = asyncio.ensure_future(pending, loop=self._loop)
        self._handler.add_done_callback(partial(self._completed, arrays))

    def _completed(self, arrays: Arrays, handler: asyncio.Future[None]) -> None:
        if handler.cancelled():
            return
        if (error := handler.exception()) is not None:
            self._fail(error)
            return
        if not arrays.retained:
            arrays.release()
        self._handler = None
        self.ring_doorbell()

    def _found_while_falling_asleep(self) -> bool:
        """Set the sleep flags of what may be delivered, then look once more (see ring.py)."""
        takes_all = self._handler is None and not any(self._unsent)
        waiting = [each.ring for each in self._receivers if takes_all or each.always_drain]
        if not waiting or (self._spin_ns and self._spin(waiting)):
            return bool(waiting)
        self._asleep = waiting
        for ring in waiting:
            ring.set_asleep(True)
        full_fence()
        return any([ring.ready() for ring in waiting])  # noqa: C419 - faster

    def _spin(self, rings: Sequence[RingReader]) -> bool:
        end = time.perf_counter_ns() + self._spin_ns
        while time.perf_counter_ns() < end:
            for ring in rings:
                if ring.ready():
                    return True
        return False

    def _fail(self, error: BaseException) -> None:
        self._open = False
        self._on_failure(error)
