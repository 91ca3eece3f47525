"""A server-sent event stream over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from dgpp.serve.limits import STREAM_BUFFER_BYTES, STREAM_STALL_SECONDS
from dgpp.serve.sse import KEEP_ALIVE

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Events:
    """Writes events without waiting: the kernel's buffer and a bounded one of ours take them.

    A client that does not read is given up (`gave_up` says why) when that buffer is over its
    limit or has not moved for `STREAM_STALL_SECONDS`; others never wait for it. Events go to the
    transport directly, in chunks framed here: a coroutine for each would cost as much as all the
    rest of sending a token.
    """

    def __init__(self, response: web.StreamResponse, transport: asyncio.Transport) -> None:
        self._response = response
        self._transport = transport
        self._backlog_since: float | None = None
        self._written = False
        self.gave_up: str | None = None

    @classmethod
    async def begin(cls, request: web.BaseRequest) -> Events:
        """Send the response head. Raises ConnectionResetError when the client is gone."""
        response = web.StreamResponse(headers=_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("client disconnected")
        return cls(response, transport)

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    def write(self, events: bytes) -> None:
        """Send whole events. After the client is gone or given up this does nothing."""
        transport = self._transport
        if transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        self._written = True
        if transport.get_write_buffer_size() > STREAM_BUFFER_BYTES:
            self._give_up(f"over {STREAM_BUFFER_BYTES} bytes unread")

    def keep_alive(self, now: float) -> None:
        """Called each ping interval: comment on silence, and notice a client that stalls."""
        if not self._written:
            self.write(KEEP_ALIVE)
        self._written = False
        if self._transport.get_write_buffer_size() == 0:
            self._backlog_since = None
        elif self._backlog_since is None:
            self._backlog_since = now
        elif now - self._backlog_since > STREAM_STALL_SECONDS:
            self._give_up(f"read nothing for {STREAM_STALL_SECONDS} seconds")

    async def end(self) -> web.StreamResponse:
        """Close the chunked body; the connection may serve its next request."""
        await self._response.write_eof()
        return self._response

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._transport.abort()


class Pinger:
    """Calls `ping` every `interval` seconds until stopped; -1 never calls."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: int, ping: Callable[[float], None]
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._ping = ping
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def _arm(self) -> None:
        if self._interval > 0:
            self._timer = self._loop.call_later(self._interval, self._fire)

    def _fire(self) -> None:
        self._ping(self._loop.time())
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
