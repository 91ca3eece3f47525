"""The end of each prompt alone: rows that all layers run, where early layers have run every row.

A slot's tail begins at `rows.floors[slot]`. Rows before it drop out after the layers that keep
something of every token, and windows beyond that point do not reach behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgpp.models.layers.extended import extended
from kernels_numba.backend import Backend, I32Array, Rows, Tensor


class Tail:
    """Packs a step's rows: those of the tail come first, in their order; `restore` puts them
    back."""

    def __init__(self, backend: Backend) -> None:
        self._ops = extended(backend)
        self._rows: Rows | None = None
        self._index: I32Array | None = None

    def of(self, rows: Rows) -> Rows:
        """The tail's rows, which the operations of later layers take: `rows` where all are."""
        count = rows.count
        kept = rows.positions[:count] >= rows.floors[rows.slots[:count]]
        self._index = None
        if kept.all():
            return rows
        self._index = np.flatnonzero(kept).astype(np.int32)
        if self._rows is None:
            slots, width = rows.tables.shape
            self._rows = self._ops.rows(slots, width)
        tail = self._rows
        tail.count = self._index.size
        for own, all_rows in (
            (tail.tokens, rows.tokens),
            (tail.positions, rows.positions),
            (tail.slots, rows.slots),
        ):
            own[: tail.count] = all_rows[self._index]
        tail.tables[:] = rows.tables
        tail.floors[:] = rows.floors
        self._ops.begin(tail)
        return tail

    def pack(self, tensors: Sequence[Tensor]) -> None:
        """The first rows of each tensor become the tail's."""
        if self._index is not None:
            for tensor in tensors:
                self._ops.pack_rows(tensor, self._index)

    def restore(self, x: Tensor) -> None:
        """The tail's rows of x go to their places in the step."""
        if self._index is not None:
            self._ops.unpack_rows(x, self._index)
