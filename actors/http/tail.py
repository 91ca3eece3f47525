"""How far what came in on a connection goes beyond the last request that is whole.

aiohttp's parser keeps the beginning of a next head to itself. Only timers depend on this, so
where framing is unusual (chunks, a head that ends in bare newlines) it may say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp.http_parser import RawRequestMessage

_HEAD_END = b"\r\n\r\n"


class Tail:
    """Told of every piece before and after it is parsed."""

    def __init__(self) -> None:
        self._body: Any = None
        self._length = 0
        self._data = b""
        self._at = 0
        self._edge = b""

    @property
    def whole(self) -> bool:
        """Whether the last request that began has its body."""
        return self._body is None or bool(self._body.is_eof())

    def before(self, data: bytes) -> None:
        """`data` is about to be parsed."""
        missing = 0 if self.whole else self._length - self._body.total_bytes
        # A head's end may lie across two pieces.
        edge = self._edge if missing == 0 else b""
        self._data = edge + data
        self._at = len(edge) + missing

    def after(self, messages: Iterable[tuple[Any, Any]]) -> int:
        """The parser made `messages` of it: how many bytes begin a head that is not whole yet."""
        data, at = self._data, self._at
        for message, body in messages:
            end = data.find(_HEAD_END, max(0, at - len(_HEAD_END) + 1))
            if end < 0 or not isinstance(message, RawRequestMessage):
                return self._restart(None, b"")
            length = message.headers.get("Content-Length", "0")
            self._body, self._length = body, int(length) if length.isdigit() else 0
            at = end + len(_HEAD_END) + self._length
        rest = data[at:] if self.whole else b""
        self._edge = rest[-len(_HEAD_END) + 1 :]
        return len(rest)

    def _restart(self, body: Any, edge: bytes) -> int:
        self._body, self._edge = body, edge
        return 0
