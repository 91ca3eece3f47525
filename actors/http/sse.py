"""A server-sent event stream over one connection."""

from __future__ import annotations

import asyncio

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

    def __init__(
        self, response: web.StreamResponse, transport: asyncio.Transport, interval: int
    ) -> None:
        self._response = response
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._interval = interval
        self._spoke = self._loop.time()
        self._stalled_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gave_up: str | None = None

    @classmethod
    async def begin(cls, request: web.BaseRequest, interval: int) -> Events:
        """Send the response head; from then on a comment after `interval` seconds of silence
        (-1: none). Raises ConnectionResetError when the client is gone."""
        response = web.StreamResponse(headers=_HEADERS)
        response.enable_chunked_encoding()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("client disconnected")
        events = cls(response, transport, interval)
        events._watch(interval if interval > 0 else STREAM_STALL_SECONDS)
        return events

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    def write(self, events: bytes) -> None:
        """Send whole events. After the client is gone or given up this does nothing."""
        transport = self._transport
        if transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(events), events))
        self._spoke = self._loop.time()
        if transport.get_write_buffer_size() > STREAM_BUFFER_BYTES:
            self._give_up(f"over {STREAM_BUFFER_BYTES} bytes unread")

    def keep_alive(self) -> None:
        """Comment on the silence."""
        self.write(KEEP_ALIVE)

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()

    async def end(self) -> web.StreamResponse:
        """Close the chunked body; the connection may serve its next request."""
        await self._response.write_eof()
        return self._response

    def _watch(self, delay: float) -> None:
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        self._check_reader(now)
        if self._interval <= 0:
            self._watch(STREAM_STALL_SECONDS)
            return
        silent = now - self._spoke
        if silent >= self._interval:
            self.keep_alive()
            silent = 0.0
        self._watch(self._interval - silent)

    def _check_reader(self, now: float) -> None:
        if self._transport.get_write_buffer_size() == 0:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since > STREAM_STALL_SECONDS:
            self._give_up(f"read nothing for {STREAM_STALL_SECONDS} seconds")

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._transport.abort()
