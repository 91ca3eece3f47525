"""Journal messages as frames on a byte stream, each bounded and checked.

A frame is the three bytes `DGJ`, the protocol number, u32 body bytes, u32 CRC-32 of the body (all
big-endian), then the body in msgpack. The bound is known before a frame is read: a few KiB until
the other side has proved who it is.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from dgpp.net.journal_errors import FrameError

PROTOCOL = 1
"""Raised with every change of what a frame or a message looks like."""

JOIN_BYTES = 64 << 10
"""Largest body while ranks join; settings are a few KiB."""

FROM_RANK_BYTES = 16 << 10
FROM_LEADER_BYTES = 272 << 20
"""A record holds at most one arrival beyond its share, and that came through a ring."""

_MAGIC = b"DGJ"
_HEADER = struct.Struct(">3sBII")

_encode = msgspec.msgpack.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """`message` as bytes to send."""
    body = _encode(message)
    return _HEADER.pack(_MAGIC, PROTOCOL, len(body), zlib.crc32(body)) + body


class FrameReader:
    """Cuts what arrives into messages of `messages` (a union of tagged Structs).

    Holds at most one frame of `limit` bytes and what came behind it in the same read.
    """

    def __init__(self, messages: Any, limit: int, unread: bytes = b"") -> None:
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._limit = limit
        self._buffer = bytearray(unread)
        self._start = 0

    @property
    def unread(self) -> bytes:
        """Bytes that are not yet part of a whole frame."""
        return bytes(self._buffer[self._start :])

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    def take(self) -> Any | None:
        """The next message, or None until more arrives. Raises FrameError."""
        buffer, start = self._buffer, self._start
        if len(buffer) - start < _HEADER.size:
            self._check_magic()
            return None
        magic, protocol, length, checksum = _HEADER.unpack_from(buffer, start)
        if magic != _MAGIC:
            raise FrameError("not a journal frame")
        if protocol != PROTOCOL:
            raise FrameError(f"journal protocol {protocol}, this rank speaks {PROTOCOL}")
        if length > self._limit:
            raise FrameError(f"a frame of {length} bytes, the limit is {self._limit}")
        begin = start + _HEADER.size
        end = begin + length
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[begin:end])
        self._start = end
        if zlib.crc32(body) != checksum:
            raise FrameError(f"a frame of {length} bytes is damaged (CRC-32)")
        try:
            return self._decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FrameError(f"a frame is none of the messages expected here: {error}") from error

    def _check_magic(self) -> None:
        """Refuse garbage at its first bytes: fewer than a header may be all that ever comes."""
        begun = bytes(self._buffer[self._start :])[: len(_MAGIC)]
        if not _MAGIC.startswith(begun):
            raise FrameError("not a journal frame")
