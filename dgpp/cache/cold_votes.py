"""What all ranks say of each operation of the disk tier, gathered by rank 0."""

from __future__ import annotations

from dgpp.cache.cold_ops import INVENTORY, ColdDone


class ColdVotes:
    """An operation is settled when every one of `world` ranks has told how it ended; in the order
    of the last word, which rank 0's records then give to all."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._told: dict[int, dict[int, tuple[bool, tuple[int, ...]]]] = {}
        self._settled: list[ColdDone] = []

    @property
    def settled(self) -> bool:
        """Whether `take` has something."""
        return bool(self._settled)

    def tell(self, rank: int, op: int, points: tuple[int, ...] = (), *, ok: bool) -> None:
        """`rank` has ended operation `op`; of the inventory, its list passed `points`, the latest
        last. Raises ValueError where the rank has said so before."""
        told = self._told.setdefault(op, {})
        if rank in told:
            raise ValueError(f"rank {rank} ended operation {op} of the disk tier twice")
        told[rank] = ok, points
        if len(told) == self._world:
            del self._told[op]
            self._settled.append(_settle(op, list(told.values())))

    def take(self) -> tuple[ColdDone, ...]:
        """What was settled since the last call."""
        settled, self._settled = tuple(self._settled), []
        return settled


def _settle(op: int, told: list[tuple[bool, tuple[int, ...]]]) -> ColdDone:
    ok = all(good for good, _ in told)
    if op != INVENTORY:
        return ColdDone(op, ok)
    shared = set.intersection(*(set(points) for _, points in told))
    latest = next((point for point in reversed(told[0][1]) if point in shared), None)
    return ColdDone(op, ok and latest is not None, latest or 0)
