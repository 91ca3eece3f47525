"""A request's head and body within their limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from aiohttp import web

from dgpp.serve.errors import ApiError, overloaded, too_large
from dgpp.serve.limits import BODIES_BYTES, BODY_BYTES_PER_SECOND, BODY_SECONDS, HEAD_BYTES


class BodyLimit(NamedTuple):
    """The bytes that a body may have, and the key, or what else, that says so. The lesser of two is
    the one that counts."""

    size: int
    by: str


class Bodies:
    """All bodies that are being read or parsed, bounded together."""

    def __init__(self) -> None:
        self._bytes = 0

    @contextlib.contextmanager
    def hold(self, request: web.BaseRequest) -> Iterator[int]:
        """Room for the body of `request`, whose size it gives. Raises ApiError 503 where there is
        none now, and what `declared_length` does."""
        size = declared_length(request)
        if self._bytes and self._bytes + size > BODIES_BYTES:
            raise overloaded(f"{self._bytes} bytes of other requests are being read")
        self._bytes += size
        try:
            yield size
        finally:
            self._bytes -= size


async def read_body(request: web.BaseRequest, limit: BodyLimit) -> bytes:
    """The whole body of `request`.

    Raises ApiError 411 without Content-Length, 501 for a chunked body, 415 for a compressed one,
    413 over `limit` (decided from Content-Length, before anything is read), 408 when it
    arrives too slowly.
    """
    size = declared_length(request)
    if size > limit.size:
        raise too_large(size, *limit)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    allowed_s = BODY_SECONDS + size / BODY_BYTES_PER_SECOND
    try:
        async with asyncio.timeout(allowed_s):
            return await request.content.read()
    except TimeoutError:
        message = f"The request body of {size} bytes took longer than {allowed_s:.0f} seconds"
        raise ApiError(408, message) from None


def declared_length(request: web.BaseRequest) -> int:
    """Content-Length. Raises ApiError 415 for a Content-Encoding, 501 for a Transfer-Encoding, 411
    where it is missing."""
    coding = request.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise ApiError(415, f"Content-Encoding {coding!r} is not served: send the body as it is")
    if "Transfer-Encoding" in request.headers:
        raise ApiError(501, "Transfer-Encoding is not implemented: send Content-Length")
    if request.content_length is None:
        raise ApiError(411, "Content-Length is required")
    return request.content_length


def check_head(request: web.BaseRequest) -> None:
    """Raises ApiError 431 for a head over its limit that came in one piece."""
    size = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    if size + len(request.raw_path) > HEAD_BYTES:
        raise ApiError(431, f"The request head is over the limit of {HEAD_BYTES} bytes")
