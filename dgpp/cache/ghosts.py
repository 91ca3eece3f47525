"""What was evicted lately: so that a miss can be explained, and a return be learned from."""

from __future__ import annotations

from typing import NamedTuple

GHOSTS = 4096


class Ghost(NamedTuple):
    """An evicted prefix: its length in tokens, the number of the eviction, its conversation, and
    the age at which it was used last."""

    position: int
    eviction: int
    line: int
    used: int


class Ghosts:
    """The last evictions, by the digest of the prefix."""

    __slots__ = ("_by_digest", "evictions")

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Ghost] = {}
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._by_digest)

    def add(self, digest: bytes, position: int, line: int, used: int) -> None:
        self.evictions += 1
        self._by_digest.pop(digest, None)
        self._by_digest[digest] = Ghost(position, self.evictions, line, used)
        if len(self._by_digest) > GHOSTS:
            del self._by_digest[next(iter(self._by_digest))]

    def find(self, digest: bytes) -> Ghost | None:
        return self._by_digest.get(digest)

    def take(self, digest: bytes) -> Ghost | None:
        """`find`, and forget it: a return is one return."""
        return self._by_digest.pop(digest, None)
