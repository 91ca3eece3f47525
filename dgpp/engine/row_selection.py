"""Penalties, bias, mask and candidate selection on the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dgpp.engine.base import EngineLimits
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.params import SamplingParams
from kernels_numba.cpu import pick

F32Array = npt.NDArray[np.float32]


class RowSelector:
    """Keeps the adjusted copies of the rows that needed one; the others stay where they are."""

    def __init__(self, limits: EngineLimits, rows: int) -> None:
        size = limits.vocab_size
        chunks = -(-size // pick.CHUNK)
        self._adjusted: F32Array = np.zeros((rows, size), np.float32)
        self._is_adjusted = [False] * rows
        self._tops = np.zeros(-(-size // pick.GROUP), np.float32)
        self._partials = np.zeros(1 << (chunks - 1).bit_length(), np.float64)
        self._ids = np.zeros((rows, limits.candidates), np.int32)
        self._values = np.zeros((rows, limits.candidates), np.float32)

    def warm_up(self, logits: F32Array) -> None:
        """Compile every kernel of the selection."""
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

    def select(
        self,
        logits: F32Array,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
    ) -> Candidates:
        """Candidates of `logits` [R, V]; row r is of slots[r], a slot's rows in draft order."""
        count = len(slots)
        held = np.zeros(count, np.int32)
        present = np.full(count, logits.shape[1], np.int32)
        lse = np.zeros(count, np.float64)
        depth = 0
        for r, (slot, sampling) in enumerate(zip(slots, params, strict=True)):
            depth = depth + 1 if r and slots[r - 1] == slot else 0
            row = self._adjust(logits[r], r, slot, sampling, tables)
            if tables.masked[slot]:
                present[r] = pick.mask_row(row, tables.mask[slot, depth])
            temperature = 1.0 if sampling.greedy else sampling.temperature
            held[r], lse[r] = self._pick(row, r, temperature)
        drafts = np.full(count, -1, np.int32)
        return Candidates(self._ids[:count], self._values[:count], held, present, lse, drafts)

    def _adjust(
        self, row: F32Array, r: int, slot: int, sampling: SamplingParams, tables: SlotTables
    ) -> F32Array:
        """`row` itself where nothing applies, else its adjusted copy."""
        biased = bool(sampling.logit_bias)
        self._is_adjusted[r] = sampling.penalised or biased or bool(tables.masked[slot])
        if not self._is_adjusted[r]:
            return row
        out: F32Array = self._adjusted[r]
        if not sampling.penalised and not biased:
            out[:] = row
            return out
        pick.adjust_row(
            row,
            out,
            tables.counts[slot],
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
            tables.bias[slot],
            int(biased),
        )
        return out

    def adjusted(self, logits: F32Array, rows: Sequence[int]) -> F32Array:
        """float32 [len(rows), V]: the rows as the last `select` saw them."""
        taken = [self._adjusted[r] if self._is_adjusted[r] else logits[r] for r in rows]
        out: F32Array = np.array(taken, np.float32).reshape(len(taken), logits.shape[1])
        return out
