"""Adjusted rows and their candidates, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels_numba.backend import F32Array
from kernels_numba.cpu import pick
from kernels_numba.picks import Adjustment, Picked


class CpuPicker:
    """Keeps the adjusted copies of the rows that needed one; the others stay where they are."""

    def __init__(self, rows: int, vocab: int, candidates: int) -> None:
        chunks = -(-vocab // pick.CHUNK)
        self._adjusted: F32Array = np.zeros((rows, vocab), np.float32)
        self._is_adjusted = [False] * rows
        self._tops = np.zeros(-(-vocab // pick.GROUP), np.float32)
        self._partials = np.zeros(1 << (chunks - 1).bit_length(), np.float64)
        self._ids = np.zeros((rows, candidates), np.int32)
        self._values = np.zeros((rows, candidates), np.float32)
        self._picked: Picked

    def warm_up(self, logits: F32Array) -> None:
        size = logits.shape[1]
        counts, bias = np.zeros(size, np.int32), np.zeros(size, np.float32)
        mask = np.zeros(-(-size // 32), np.uint32)
        pick.adjust_row(logits[0], self._adjusted[0], counts, 1.0, 0.0, 0.0, bias, 0)
        pick.mask_row(self._adjusted[0], mask)
        self._pick(logits[0], 0, 1.0)

    def _pick(self, row: F32Array, r: int, temperature: float) -> tuple[int, float]:
        held, lse = pick.pick_row(
            row, temperature, self._tops, self._partials, self._ids[r], self._values[r]
        )
        return held, lse

    def launch(self, logits: F32Array, rows: Sequence[Adjustment]) -> None:
        count = len(rows)
        held = np.zeros(count, np.int32)
        present = np.full(count, logits.shape[1], np.int32)
        lse = np.zeros(count, np.float64)
        for r, adjustment in enumerate(rows):
            row = self._adjust(logits[r], r, adjustment)
            if adjustment.mask is not None:
                present[r] = pick.mask_row(row, adjustment.mask)
            held[r], lse[r] = self._pick(row, r, adjustment.temperature)
        none = np.full(count, -1, np.int32)
        self._picked = Picked(self._ids[:count], self._values[:count], held, present, lse, none)

    def collect(self) -> Picked:
        return self._picked

    def _adjust(self, row: F32Array, r: int, adjustment: Adjustment) -> F32Array:
        """`row` itself where nothing applies, else its adjusted copy, not yet masked."""
        self._is_adjusted[r] = adjustment.changes
        if not adjustment.changes:
            return row
        out: F32Array = self._adjusted[r]
        counts, bias = adjustment.counts, adjustment.bias
        if counts is None:
            out[:] = row if bias is None else row + bias
            return out
        pick.adjust_row(
            row,
            out,
            counts,
            adjustment.repetition,
            adjustment.frequency,
            adjustment.presence,
            out if bias is None else bias,
            int(bias is not None),
        )
        return out

    def adjusted(self, logits: F32Array, rows: Sequence[int]) -> F32Array:
        taken = [self._adjusted[r] if self._is_adjusted[r] else logits[r] for r in rows]
        out: F32Array = np.array(taken, np.float32).reshape(len(taken), logits.shape[1])
        return out
