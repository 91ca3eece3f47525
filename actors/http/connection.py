"""One HTTP connection: aiohttp's protocol with the limits it does not have itself.

aiohttp bounds single lines and the number of headers, but neither the time nor the bytes that
a request head may take, and it accepts any number of connections. All three are kept here, so
that a slow or greedy client costs one timer and 16 KiB.

A client that ends its side of the connection gets the answer to what it has asked in whole, unless
that is text still being generated: whoever goes away looks the same, and must not keep a slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import LineTooLong

from actors.http.tail import Tail
from dgpp.serve.access import request_id
from dgpp.serve.errors import ApiError, overloaded
from dgpp.serve.limits import HEAD_BYTES, HEAD_SECONDS, IDLE_SECONDS

REQUEST_ID = "X-Request-Id"


class Connection(web.RequestHandler):
    """aiohttp's request handler with a bound on connections, head bytes and head time."""

    def __init__(self, manager: Listener, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._listener = manager
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._tail = Tail()
        self._half_closed = False
        self._generating = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.handshakes.discard(self)
        if len(self._listener.connections) > self._listener.max_connections:
            self._listener.refused()
            limit = f"engine.max_connections is {self._listener.max_connections}"
            self.answer_and_close(overloaded(f"Too many connections: {limit}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        heading = self._waits()
        self._tail.before(data)
        super().data_received(data)
        queued = len(self._messages)
        new = islice(self._messages, queued - (self._request_count - before), None)
        begun = self._tail.after(new)
        if queued >= self._max_msg_queue_size:
            # The rest waits in the parser, whole requests among it.
            begun = 0
        if self._request_count != before:
            self._disarm()
        if begun or (heading and self._request_count == before):
            self._watch_head(begun or len(data))

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. True keeps the connection until it has its answers."""
        self._half_closed = True
        over_tls = self.transport is not None and self.transport.get_extra_info("sslcontext")
        if over_tls or self._generating or self._waits() or not self._tail.whole:
            return None
        self.close()
        return True

    @contextmanager
    def generating(self) -> Iterator[None]:
        """While text is made for this client: if it ends its side now, it is gone. Raises
        ConnectionResetError where it has already."""
        if self._half_closed:
            self.force_close()
            raise ConnectionResetError("client disconnected")
        self._generating = True
        try:
            yield
        finally:
            self._generating = False

    def _waits(self) -> bool:
        """Whether nothing that was asked is unanswered: what comes next belongs to a head."""
        waiter = self._waiter
        return self._request_count == 0 or (waiter is not None and not waiter.done())

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """An answer in this API's error form for what never became a request."""
        if isinstance(exc, LineTooLong) or "Too many headers" in (message or ""):
            error = ApiError(431, f"The request head is over the limit of {HEAD_BYTES} bytes")
        elif "PRI/Upgrade" in (message or ""):
            error = ApiError(505, "HTTP/2 is not served, only HTTP/1.0 and 1.1")
        elif status >= 500:
            self.log_exception("request failed", exc_info=exc)
            error = ApiError(500, "Internal error")
        else:
            first_line = (message or "Bad request").partition("\n")[0].rstrip(": ")
            error = ApiError(status, f"Malformed HTTP request: {first_line}")
        response = web.Response(
            status=error.status, body=error.json(), content_type="application/json"
        )
        response.headers[REQUEST_ID] = request_id(None)
        response.force_close()
        return response

    def _watch_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES and self._waits():
            self.answer_and_close(
                ApiError(431, f"The request head is over the limit of {HEAD_BYTES} bytes")
            )
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_too_slow)

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if not self._waits():
            # An answer is on its way; the head behind it gets as much time again.
            self._watch_head(0)
            return
        self.answer_and_close(
            ApiError(408, f"The request head took longer than {HEAD_SECONDS} seconds")
        )

    def _disarm(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def answer_and_close(self, error: ApiError) -> None:
        """Answer beside any request, and close the connection."""
        if (transport := self.transport) is not None and not transport.is_closing():
            transport.write(raw_answer(error))
        self._disarm()
        self.force_close()


class Listener(web.Server):
    """aiohttp's server, handing out `Connection`s; `refused` is told of those over the limit,
    `accepting` is called before each."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        max_connections: int,
        refused: Callable[[], None],
        accepting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(self._handle, handler_cancellation=True)
        self._handler = handler
        self.max_connections = max_connections
        self.refused = refused
        self.accepting = accepting
        self.handshakes: set[Connection] = set()

    @property
    def full(self) -> bool:
        """Whether one more would be too many, with those that are still agreeing on TLS."""
        return len(self.connections) + len(self.handshakes) >= self.max_connections

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.version not in (HttpVersion10, HttpVersion11):
            # A response would begin with the version that the request named.
            major, minor = request.version
            message = f"HTTP/{major}.{minor} is not served, only 1.0 and 1.1"
            connection_of(request).answer_and_close(ApiError(505, message))
            return web.Response(status=505)  # which finds the connection closed
        return await self._handler(request)

    def __call__(self) -> Connection:
        self.accepting()
        return Connection(
            self,
            loop=self._loop,
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            access_log=None,
            # A small body may unpack to gigabytes: bodies are read as they come or refused.
            auto_decompress=False,
            lingering_time=2.0,
        )


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection that `request` came on."""
    found = request.protocol
    assert isinstance(found, Connection)
    return found


def raw_answer(error: ApiError) -> bytes:
    """`error` as a whole HTTP/1.1 response, for a connection that has no request to answer."""
    body = error.json()
    head = (
        f"HTTP/1.1 {error.status} {_REASONS.get(error.status, 'Error')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n{REQUEST_ID}: {request_id(None)}\r\n"
    )
    if error.retry_after is not None:
        head += f"Retry-After: {error.retry_after}\r\n"
    return head.encode() + b"\r\n" + body


_REASONS = {
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
