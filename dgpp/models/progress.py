"""How far a model's weights have come into memory, told while they come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dgpp.models.forms import ModelForms
from dgpp.models.sources import Depthwise, Linear, PlannedWeights, Vector, WeightSource
from dgpp.models.tables import Table
from kernels_numba.backend import Matrix, Tensor

EVERY_S = 5.0
"""Seconds between two lines; what takes less says nothing."""
GIB = 1 << 30

_log = logging.getLogger("dgpp.engine")


class FollowedWeights(WeightSource):
    """Gives what `source` gives, and logs every EVERY_S seconds how much of `total` bytes, as the
    memory plan counts them, that is by now; `doing` begins the line."""

    def __init__(
        self,
        source: WeightSource,
        forms: ModelForms,
        total: int,
        doing: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shard, self.tables = source.shard, source.tables
        self._source = source
        self._planned = PlannedWeights(source.shard, source.tables, forms)
        self._total, self._doing, self._clock = total, doing, clock
        self._began = self._told = clock()

    def _both(self, call: Callable[[WeightSource], Any]) -> Any:
        found = call(self._source)
        call(self._planned)
        now = self._clock()
        if now - self._told >= EVERY_S:
            self._told = now
            done = sum(self._planned.items.values()) / GIB
            seconds = now - self._began
            _log.info(
                "%s: %.1f of %.1f GiB in %.0f s", self._doing, done, self._total / GIB, seconds
            )
        return found

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        return self._both(lambda source: source.matrix(item, linears))

    def values(self, item: str, vector: Vector) -> Tensor:
        return self._both(lambda source: source.values(item, vector))

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        return self._both(lambda source: source.depthwise(item, kernels, taps))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        return self._both(lambda source: source.joined(item, names))

    def table(self, item: str, table: Table) -> Any:
        return self._both(lambda source: source.table(item, table))

    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        return self._both(lambda source: source.integers(item, name, shape, limit))

    def choose(self, names: Sequence[str]) -> str:
        return self._source.choose(names)

    def beside(self, name: str) -> Path | None:
        return self._source.beside(name)

    def ignore(self, pattern: str) -> None:
        self._source.ignore(pattern)

    def unloaded(self) -> WeightSource:
        return self._source.unloaded()
