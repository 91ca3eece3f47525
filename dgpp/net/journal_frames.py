"""Journal messages as frames on a byte stream, each bounded and checked.

A frame is the three bytes `DGJ`, the protocol number, u32 body bytes, u32 number, u32 CRC-32 of the
body and that number (all big-endian), then the body in msgpack. Frames of a running journal are
numbered from 1 on in each direction, so that none is lost, doubled or out of place unseen; before
the first of them, while ranks join, the number is 0. So is that of last words, which another
process says for one that cannot speak any more. The bound is known before a frame is read: a few
KiB until the other side has proved who it is.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from dgpp.net.journal_errors import FrameError

PROTOCOL = 3
"""Raised with every change of what a frame or a message looks like."""

JOIN_BYTES = 64 << 10
"""Largest body while ranks join; settings are a few KiB."""

FROM_RANK_BYTES = 16 << 10
FROM_LEADER_BYTES = 272 << 20
"""A record holds at most one arrival beyond its share, and that came through a ring."""

_MAGIC = b"DGJ"
_HEADER = struct.Struct(">3sBIII")
_NUMBER = struct.Struct(">I")
UNNUMBERED = 0
LAST_NUMBER = (1 << 32) - 1

encode = msgspec.msgpack.Encoder().encode
"""A message as the body of a frame."""


def following(number: int) -> int:
    """The number after `number`."""
    return number % LAST_NUMBER + 1


def header(body: bytes, number: int = UNNUMBERED) -> bytes:
    """What goes before `body` in a frame."""
    checksum = zlib.crc32(_NUMBER.pack(number), zlib.crc32(body))
    return _HEADER.pack(_MAGIC, PROTOCOL, len(body), number, checksum)


def frame(message: msgspec.Struct, number: int = UNNUMBERED) -> bytes:
    """`message` as bytes to send."""
    body = encode(message)
    return header(body, number) + body


class FrameReader:
    """Cuts what arrives into messages of `messages` (a union of tagged Structs).

    Holds at most one frame of `limit` bytes and what came behind it in the same read. With
    `numbered` frames must come as they are numbered, but for what was sent before the first number
    and for `last_words`.
    """

    def __init__(
        self,
        messages: Any,
        limit: int,
        unread: bytes = b"",
        *,
        numbered: bool = False,
        last_words: tuple[type, ...] = (),
    ) -> None:
        self._last_words = last_words
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._limit = limit
        self._numbered = numbered
        self._due = 1
        self._begun = False
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
            self._check_beginning()
            return None
        magic, protocol, length, number, checksum = _HEADER.unpack_from(buffer, start)
        if magic != _MAGIC or protocol != PROTOCOL:
            self._check_beginning()
        if length > self._limit:
            raise FrameError(f"a frame of {length} bytes, the limit is {self._limit}")
        begin = start + _HEADER.size
        end = begin + length
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[begin:end])
        self._start = end
        if zlib.crc32(_NUMBER.pack(number), zlib.crc32(body)) != checksum:
            raise FrameError(f"a frame of {length} bytes is damaged (CRC-32)")
        try:
            message = self._decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FrameError(f"a frame is none of the messages expected here: {error}") from error
        if self._numbered:
            self._check_number(number, isinstance(message, self._last_words))
        return message

    def _check_number(self, number: int, is_last: bool) -> None:
        if number == UNNUMBERED and (is_last or not self._begun):
            return
        if number != self._due:
            raise FrameError(f"frame {number} came, {self._due} was due: lost or out of order")
        self._begun, self._due = True, following(number)

    def _check_beginning(self) -> None:
        """Refuse garbage at its first bytes: fewer than a header may be all that ever comes."""
        begun = bytes(self._buffer[self._start : self._start + len(_MAGIC) + 1])
        if not begun:
            return
        if not _MAGIC.startswith(begun[: len(_MAGIC)]):
            raise FrameError("not a journal frame")
        if len(begun) > len(_MAGIC) and begun[-1] != PROTOCOL:
            raise FrameError(f"journal protocol {begun[-1]}, this rank speaks {PROTOCOL}")
