"""Draft logits of some token ids alone: those rows of the head, copied; every other id is −∞."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dgpp.models.layers.extended import extended
from kernels_numba.backend import Backend, Logits, Matrix


class Scored(Protocol):
    """A drafter whose last rows a head makes logits of."""

    def logits(self, index: Sequence[int], head: Matrix, out: Logits) -> None:
        """Logits [len(index), rows of `head`]."""


class DraftScores:
    """`ids` ascending; of them this rank scores those of its slice `vocabulary`."""

    def __init__(self, ids: Sequence[int], vocabulary: range) -> None:
        own = np.asarray(ids, np.int32) - vocabulary.start
        self._own = np.ascontiguousarray(own[(own >= 0) & (own < len(vocabulary))])
        self._room = 0

    def prepare(self, ops: Backend, head: Matrix) -> None:
        """Copy the rows of the rank's `head`."""
        self._ops = extended(ops)
        self._head = self._ops.take_rows(head, self._own)

    def logits(self, drafter: Scored, index: Sequence[int], out: Logits) -> None:
        """As the drafter's own logits over the whole slice."""
        if len(index) > self._room:
            self._room = len(index)
            self._few = self._ops.logits(self._room, len(self._own))
        if len(self._own):
            drafter.logits(index, self._head, self._few)
        self._ops.spread_logits(self._few, len(index), self._own, out)
