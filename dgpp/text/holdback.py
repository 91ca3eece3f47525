"""Lets bytes through until a marker comes, and holds back what may still become one."""

from __future__ import annotations

from typing import NamedTuple


class Match(NamedTuple):
    """A marker found: which one, and where it ends in the stream (bytes from its start)."""

    marker: bytes
    end: int


class HoldBack:
    """Searches a stream of bytes for the first of `markers`.

    First is the one that is complete first; of two complete at the same byte, the longer. So the
    answer is the same however the stream was cut into pushes. Held back is the longest end of
    the stream that begins a marker, at most the longest marker's length less one.
    """

    def __init__(self, markers: tuple[bytes, ...]) -> None:
        self._markers = markers
        self._heads = frozenset(marker[:1] for marker in markers)
        self._longest = max(map(len, markers), default=0)
        self._held = b""
        self._seen = 0

    def push(self, data: bytes) -> tuple[bytes, Match | None]:
        """Bytes that are free to go, and the marker that ends them if one is complete.

        What follows the marker in `data` is dropped; the caller knows it by `Match.end`.
        """
        held = self._held + data
        start = self._seen - len(self._held)
        self._seen += len(data)
        found = self._first(held)
        if found is not None:
            end, at, marker = found
            self._held = b""
            return held[:at], Match(marker, start + end)
        cut = self._safe(held)
        self._held = held[cut:]
        return held[:cut], None

    def flush(self) -> bytes:
        """All that was held back: the stream is over and no marker came."""
        held, self._held = self._held, b""
        return held

    def _first(self, held: bytes) -> tuple[int, int, bytes] | None:
        best: tuple[int, int, bytes] | None = None
        for marker in self._markers:
            at = held.find(marker)
            if at >= 0 and (best is None or (at + len(marker), at) < best[:2]):
                best = at + len(marker), at, marker
        return best

    def _safe(self, held: bytes) -> int:
        """Where the longest end of `held` that begins a marker starts."""
        size = len(held)
        for at in range(max(0, size - self._longest + 1), size):
            if held[at : at + 1] in self._heads:
                tail = held[at:]
                if any(marker.startswith(tail) for marker in self._markers):
                    return at
        return size
