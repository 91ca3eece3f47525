"""One HTTP connection: aiohttp's protocol with the limits it does not have itself.

aiohttp bounds single lines and the number of headers, but neither the time nor the bytes that
a request head may take, and it accepts any number of connections. All three are kept here, so
that a slow or greedy client costs one timer and 16 KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from dgpp.serve.errors import ApiError, overloaded
from dgpp.serve.limits import HEAD_BYTES, HEAD_SECONDS, IDLE_SECONDS


class Connection(web.RequestHandler):
    """aiohttp's request handler with a bound on connections, head bytes and head time."""

    def __init__(self, manager: Listener, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._listener = manager
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._listener.connections) > self._listener.max_connections:
            self._listener.refused()
            limit = f"max_connections is {self._listener.max_connections}"
            self._answer_and_close(overloaded(f"Too many connections: {limit}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        # Waiting for a request, or before the first: what comes now belongs to a head.
        waiter = self._waiter
        heading = before == 0 or (waiter is not None and not waiter.done())
        super().data_received(data)
        if self._request_count != before:
            self._disarm()
        elif heading:
            self._watch_head(len(data))

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
        elif status >= 500:
            self.log_exception("request failed", exc_info=exc)
            error = ApiError(500, "Internal error")
        else:
            first_line = (message or "Bad request").partition("\n")[0].rstrip(": ")
            error = ApiError(status, f"Malformed HTTP request: {first_line}")
        response = web.Response(
            status=error.status, body=error.json(), content_type="application/json"
        )
        response.force_close()
        return response

    def _watch_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._answer_and_close(
                ApiError(431, f"The request head is over the limit of {HEAD_BYTES} bytes")
            )
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_too_slow)

    def _head_too_slow(self) -> None:
        self._answer_and_close(
            ApiError(408, f"The request head took longer than {HEAD_SECONDS} seconds")
        )

    def _disarm(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _answer_and_close(self, error: ApiError) -> None:
        if (transport := self.transport) is not None and not transport.is_closing():
            transport.write(raw_answer(error))
        self._disarm()
        self.force_close()


class Listener(web.Server):
    """aiohttp's server, handing out `Connection`s; `refused` is told of those over the limit."""

    def __init__(self, handler: Any, *, max_connections: int, refused: Callable[[], None]) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.max_connections = max_connections
        self.refused = refused

    def __call__(self) -> Connection:
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


def raw_answer(error: ApiError) -> bytes:
    """`error` as a whole HTTP/1.1 response, for a connection that has no request to answer."""
    body = error.json()
    head = (
        f"HTTP/1.1 {error.status} {_REASONS.get(error.status, 'Error')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n"
    )
    if error.retry_after is not None:
        head += f"Retry-After: {error.retry_after}\r\n"
    return head.encode() + b"\r\n" + body


_REASONS = {
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
