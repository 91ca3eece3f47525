"""Requests in flight: what stands between a socket and the actors that answer it."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Callable

from dgpp.serve.errors import ApiError
from dgpp.serve.fronts import FRONTS, Streamed, Whole
from dgpp.serve.request import GenerationRequest
from dgpp.text.delta import Delta

_LETTERS = string.ascii_letters + string.digits


def random_letters(count: int) -> str:
    """Padding that says nothing about the tokens it stands beside."""
    return "".join(secrets.choice(_LETTERS) for _ in range(count))


def responder(request: GenerationRequest, created: int) -> Streamed | Whole:
    """What words the answer to `request`, as its API does."""
    front = FRONTS[request.kind]
    if request.stream:
        return front.streamed(request, created, random_letters)
    return front.whole(request, created)


class Flight:
    """One request. Deltas are kept until its stream is open, then written as they come.

    `at_door`: the scheduler has not acknowledged it. `over`: tokenizer or scheduler ended it, so
    that there is nothing to cancel there. `deadline` ends it when its own time is up.
    """

    def __init__(
        self,
        request: GenerationRequest,
        responder: Streamed | Whole,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.request = request
        self.responder = responder
        self.at_door = True
        self.over = False
        self.began = loop.time()
        self.first_delta: float | None = None
        self.stamped = False
        self.deadline: asyncio.TimerHandle | None = None
        self._loop = loop
        self._refusal: ApiError | None = None
        self._write: Callable[[bytes], None] | None = None
        self._held: list[bytes] = []
        self._started: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()

    def deliver(self, delta: Delta, stamp: bytes, committed_ns: int) -> None:
        """Take news of one choice, decided at `committed_ns` of the monotonic clock. `stamp` (an
        event comment, or empty) goes ahead of it."""
        if self._done.done():
            return
        times = self.responder.account.times
        times.commit(delta.choice, delta.completion_tokens, committed_ns)
        if self.first_delta is None and delta.completion_tokens:
            self.first_delta = self._loop.time()
        if events := self.responder.add(delta):
            self._send(stamp + events if stamp else events)
        if self.responder.account.done:
            self._finish(None)

    def refuse(self, error: ApiError) -> None:
        """End the request with `error`: as an event where its stream is open, else as the
        response."""
        if self._done.done():
            return
        if self._write is not None or self._held:
            self._send(FRONTS[self.request.kind].error_events(error))
            self._finish(None)
        else:
            self._finish(error)

    async def started(self, wait_s: float | None) -> bool:
        """True when there is something to send, False after `wait_s` seconds of silence.
        Raises ApiError when the request was refused before anything was sent."""
        await asyncio.wait((self._started,), timeout=wait_s)
        self._raise_refusal()
        return self._started.done()

    def attach(self, write: Callable[[bytes], None]) -> None:
        """The stream is open: send what was held, then write through."""
        for events in self._held:
            write(events)
        self._held.clear()
        self._write = write

    async def done(self) -> None:
        """Wait for the end. Raises ApiError when refused before anything was sent."""
        await self._done
        self._raise_refusal()

    def _send(self, events: bytes) -> None:
        if self._write is not None:
            self._write(events)
        else:
            self._held.append(events)
            self._start()

    def _start(self) -> None:
        if not self._started.done():
            self._started.set_result(None)

    def _raise_refusal(self) -> None:
        # Kept nowhere, this frame included: its traceback holds the frames that hold this flight
        # and the request's body, which would live on until the collector finds the circle.
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal

    def _finish(self, error: ApiError | None) -> None:
        self.at_door = False
        self._refusal = error
        self._done.set_result(None)
        self._start()


class Flights:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        self._flights[flight.request.id] = flight
        self._empty.clear()

    def remove(self, flight_id: str) -> None:
        self._flights.pop(flight_id, None)
        if not self._flights:
            self._empty.set()

    def get(self, flight_id: str) -> Flight | None:
        """None for a request whose client has gone: news of it may still be on its way."""
        return self._flights.get(flight_id)

    def at_door(self) -> int:
        """Choices that the scheduler has not acknowledged yet."""
        return sum(f.request.choices for f in self._flights.values() if f.at_door)

    def refuse_all(self, error: ApiError) -> None:
        for flight in list(self._flights.values()):
            flight.refuse(error)

    async def all_done(self) -> None:
        await self._empty.wait()
