"""A server-sent event stream over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import HttpVersion11, web

from dgpp.serve.limits import STREAM_BUFFER_BYTES, STREAM_STALL_SECONDS
from dgpp.serve.sse import KEEP_ALIVE

STALL_CHECK_S = STREAM_STALL_SECONDS / 6

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Events:
    """Writes events without waiting: the kernel's buffer and a bounded one of ours take them.

    A client that does not read is given up (`gave_up` says why) when that buffer is over its limit
    or has not moved for `STREAM_STALL_SECONDS`; others never wait for it. Events go to the
    transport directly, in chunks framed here: a coroutine for each would cost as much as all the
    rest of sending a token.
    """

    def __init__(
        self,
        response: web.StreamResponse,
        transport: asyncio.Transport,
        interval: int,
        *,
        chunked: bool = True,
    ) -> None:
        self._response = response
        self._chunked = chunked
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._interval = interval
        self._spoke = self._loop.time()
        self._sent = 0
        self._drained = 0
        self._moved = self._spoke
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.gave_up: str | None = None

    @classmethod
    async def begin(
        cls, request: web.BaseRequest, interval: int, headers: Mapping[str, str]
    ) -> Events:
        """Send the response head, `headers` among it; from then on a comment after `interval`
        seconds of silence (-1: none). HTTP/1.0 knows no chunks: there the end of the connection is
        the end of the stream. Raises ConnectionResetError when the client is gone."""
        chunked = request.version >= HttpVersion11
        response = web.StreamResponse(headers={**_HEADERS, **headers})
        if chunked:
            response.enable_chunked_encoding()
        else:
            response.force_close()
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("client disconnected")
        events = cls(response, transport, interval, chunked=chunked)
        events.watch()
        return events

    def watch(self) -> None:
        """Start the two timers: of the keep-alive and of the stall check."""
        if self._interval > 0:
            self._timers["ping"] = self._loop.call_later(self._interval, self._ping)
        self._timers["stall"] = self._loop.call_later(STALL_CHECK_S, self._check_reader)

    def write(self, events: bytes) -> None:
        """Send whole events. After the client is gone or given up this does nothing."""
        transport = self._transport
        if transport.is_closing():
            return
        chunk = b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events
        transport.write(chunk)
        self._sent += len(chunk)
        self._spoke = self._loop.time()
        if transport.get_write_buffer_size() > STREAM_BUFFER_BYTES:
            self._give_up(f"over {STREAM_BUFFER_BYTES} bytes unread")

    def keep_alive(self) -> None:
        """Comment on the silence."""
        self.write(KEEP_ALIVE)

    def close(self) -> None:
        """Watch no longer."""
        for timer in self._timers.values():
            timer.cancel()

    async def end(self) -> web.StreamResponse:
        """Close the chunked body; the connection may serve its next request."""
        await self._response.write_eof()
        return self._response

    def _ping(self) -> None:
        silent = self._loop.time() - self._spoke
        if silent >= self._interval:
            self.keep_alive()
            silent = 0.0
        self._timers["ping"] = self._loop.call_later(self._interval - silent, self._ping)

    def _check_reader(self) -> None:
        now = self._loop.time()
        waiting = self._transport.get_write_buffer_size()
        if waiting == 0 or self._sent - waiting > self._drained:
            self._moved = now
        self._drained = self._sent - waiting
        if now - self._moved >= STREAM_STALL_SECONDS:
            self._give_up(f"read nothing for {STREAM_STALL_SECONDS} seconds")
        else:
            self._timers["stall"] = self._loop.call_later(STALL_CHECK_S, self._check_reader)

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._transport.abort()
