"""Rows of a table that the last tokens name: of every n-gram that ends at a token some hashes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dgpp.models.layers.attention import RING_SLACK
from dgpp.models.layers.extended import extended
from dgpp.models.layers.fold import Fold
from dgpp.models.layers.workspace import Workspace
from dgpp.models.observer import Observer
from dgpp.models.shard import Shard
from dgpp.models.sources import WeightSource
from dgpp.models.tables import Table
from dgpp.state.declaration import Ring
from kernels_numba.backend import Backend, Rows, Tensor
from kernels_numba.tables import NgramHash

ITEM = "n-gram table"
"""Its line of the memory plan."""


def primes_from(least: int) -> Iterator[int]:
    """Primes that are not below `least`, of which releases make the sizes of heads' parts."""
    candidate = max(least, 2)
    while True:
        odd = range(3, math.isqrt(candidate) + 1, 2)
        if candidate == 2 or (candidate % 2 and all(candidate % factor for factor in odd)):
            yield candidate
        candidate += 1


@dataclass(frozen=True, slots=True)
class NgramShape:
    """`how` names rows, a head of it one of `dim` values; the table has `total` rows, some of them
    padding."""

    how: NgramHash
    dim: int
    total: int

    @property
    def width(self) -> int:
        """Values of what a token looks up: its heads' rows side by side."""
        return len(self.how.primes) * self.dim

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        return (("n-gram rows", self.width),)

    def ring(self, name: str) -> Ring:
        """The last tokens of a request, and as many more as may be fed in vain: a row that is fed
        again must find those before it."""
        return Ring(f"{name} tokens", self.how.history + RING_SLACK, 1, wide=True)

    def held(self, shard: Shard) -> tuple[int, int]:
        """First and number of the table's rows that belong to one rank's heads, padding to the
        last's. Raises ConfigError where the heads cannot be shared out equally."""
        each = shard.part(len(self.how.primes), "the heads of the n-gram table")
        begins = (*self.how.offsets[:-1], self.total)
        first = begins[each * shard.rank]
        return first, begins[each * (shard.rank + 1)] - first


class NgramRows:
    """out[r] = the rows that r's token and those before it name, side by side.

    In a world a rank keeps the rows of its share of the heads, and all get the others' from their
    sum. Tables that are mapped every rank reads by itself.
    """

    def __init__(self, source: WeightSource, table: Table, shape: NgramShape) -> None:
        self._shape = shape
        self._shared = source.shard.world > 1 and not source.tables.mapped
        self._first = table.span[0] if self._shared else 0
        self._table = source.table(ITEM, table)

    def prepare(self, ops: Backend, work: Workspace, ring: object) -> None:
        """Give the layer the ring of its tokens, once."""
        self._ops, self._ring = extended(ops), ring
        self._ngrams = self._ops.ngrams(self._shape.how)
        collective = work.collective if self._shared else None
        out = work.extra["n-gram rows"]
        self._fold = Fold(ops, out, self._shape.width, collective, adds=False)

    def forward(self, rows: Rows, work: Workspace, observer: Observer | None) -> Tensor:
        """What the rows look up, float32 [rows, width]."""
        ops, fold = self._ops, self._fold
        ops.find_ngrams(rows, self._ngrams, self._ring)
        if observer is not None:
            observer.looked_up(rows, self._ngrams)
        ops.look_up(rows, self._ngrams, self._table, fold.target, first=self._first)
        fold.finish(rows)
        return work.extra["n-gram rows"]
