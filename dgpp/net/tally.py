"""What a rank's end of the collectives counts."""

from __future__ import annotations

from dgpp.net.collective import CollectiveStatistics
from dgpp.net.tags import Kind


class Tally:
    """Counts since the start; see `CollectiveStatistics`."""

    def __init__(self, world: int) -> None:
        self._counts = dict.fromkeys(Kind, 0)
        self._bytes = self._waits = 0
        self._waited_s = 0.0
        self._late = [0] * world

    def begin(self, kind: Kind, size: int) -> None:
        """A collective of `size` bytes a rank."""
        self._counts[kind] += 1
        self._bytes += size

    def late(self, rank: int) -> None:
        """A wait begins for which this rank goes to sleep, for `rank` first (-1: it is there)."""
        self._waits += 1
        if rank >= 0:
            self._late[rank] += 1

    def waited(self, seconds: float) -> None:
        self._waited_s += seconds

    def statistics(self, path: str) -> CollectiveStatistics:
        counts = self._counts
        return CollectiveStatistics(
            path=path,
            all_reduces=counts[Kind.ALL_REDUCE],
            all_gathers=counts[Kind.ALL_GATHER],
            barriers=counts[Kind.BARRIER],
            bytes=self._bytes,
            waits=self._waits,
            waited_s=self._waited_s,
            late=tuple(self._late),
        )
