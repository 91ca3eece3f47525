"""One connection of a running journal: frames in, frames out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from dgpp.net.journal_errors import FrameError
from dgpp.net.journal_frames import UNNUMBERED, FrameReader, encode, following, header
from dgpp.net.journal_messages import LAST_WORDS


class JournalLink(asyncio.Protocol):
    """Hands each message to `on_message`; `on_end` hears, once, that the connection is over: why,
    or nothing where it was closed in order; `on_garbage` hears of what is no message, after which
    nothing more is read."""

    def __init__(
        self,
        messages: Any,
        limit: int,
        unread: bytes,
        *,
        on_message: Callable[[Any], object],
        on_garbage: Callable[[FrameError], object],
        on_end: Callable[[str], object],
    ) -> None:
        self._reader = FrameReader(messages, limit, unread, numbered=True, last_words=LAST_WORDS)
        self._sent = UNNUMBERED
        self._on_message = on_message
        self._on_garbage = on_garbage
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._deaf = False

    def itself(self) -> JournalLink:
        """The protocol of the one connection that it is made for."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self._deliver()

    def data_received(self, data: bytes) -> None:
        if not self._deaf:
            self._reader.feed(data)
            self._deliver()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._transport = None
        self._on_end(f": {exc}" if exc is not None else "")

    def send(self, message: msgspec.Struct) -> None:
        self.send_body(encode(message))

    def send_body(self, body: bytes) -> None:
        """Send what `encode` made. After the end of the connection this does nothing."""
        if self._transport is not None:
            self._sent = following(self._sent)
            self._transport.writelines((header(body, self._sent), body))

    def close(self) -> None:
        """End the connection once all is sent."""
        self._deaf = True
        if self._transport is not None:
            self._transport.close()

    def _deliver(self) -> None:
        while not self._deaf:
            try:
                message = self._reader.take()
            except FrameError as error:
                self._deaf = True
                self._on_garbage(error)
                return
            if message is None:
                return
            self._on_message(message)


def no_delay(connection: socket.socket) -> None:
    """Ticks are small and wanted at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
