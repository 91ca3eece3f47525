"""What all ranks say of each operation of the disk tier, gathered by rank 0."""

from __future__ import annotations

from dgpp.cache.cold_ops import ColdDone


class ColdVotes:
    """An operation is settled when every one of `world` ranks has told how it ended; in the order
    of the last word, which rank 0's records then give to all."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._told: dict[int, dict[int, tuple[bool, int]]] = {}
        self._settled: list[ColdDone] = []

    @property
    def settled(self) -> bool:
        """Whether `take` has something."""
        return bool(self._settled)

    def tell(self, rank: int, op: int, digest: int, *, ok: bool) -> None:
        """`rank` has ended operation `op`. Raises ValueError where it has said so before."""
        told = self._told.setdefault(op, {})
        if rank in told:
            raise ValueError(f"rank {rank} ended operation {op} of the disk tier twice")
        told[rank] = ok, digest
        if len(told) == self._world:
            del self._told[op]
            self._settled.append(ColdDone(op, set(told.values()) == {(True, digest)}, digest))

    def take(self) -> tuple[ColdDone, ...]:
        """What was settled since the last call."""
        settled, self._settled = tuple(self._settled), []
        return settled
