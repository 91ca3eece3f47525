"""What sampling parameters and slot tables do to the rows of a step before their candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.params import SamplingParams
from kernels_numba.backend import Adjustment, Logits, Picker

F32Array = npt.NDArray[np.float32]


class RowSelector:
    """Turns each row's parameters into an `Adjustment` and lets the backend pick.

    Tables are of the whole vocabulary; logits and candidates are of the ids `vocabulary`, counted
    from its first, which is a multiple of 32.
    """

    def __init__(self, picker: Picker, vocabulary: range) -> None:
        self._picker = picker
        self._vocabulary = vocabulary

    def warm_up(self, logits: Logits) -> None:
        """Compile every kernel of the selection."""
        self._picker.warm_up(logits)

    def select(
        self,
        logits: Logits,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
    ) -> Candidates:
        """Candidates of `logits` [R, V]; row r is of slots[r], a slot's rows in draft order."""
        adjustments = []
        depth = 0
        for r, (slot, sampling) in enumerate(zip(slots, params, strict=True)):
            depth = depth + 1 if r and slots[r - 1] == slot else 0
            adjustments.append(_adjustment(slot, depth, sampling, tables, self._vocabulary))
        picked = self._picker.pick(logits, adjustments)
        none = np.full(len(slots), -1, np.int32)
        return Candidates(
            picked.ids, picked.values, picked.held, picked.present, picked.lse, none, none
        )

    def adjusted(self, logits: Logits, rows: Sequence[int]) -> F32Array:
        """float32 [len(rows), V]: the rows as the last `select` saw them."""
        return self._picker.adjusted(logits, rows)


def _adjustment(
    slot: int, depth: int, sampling: SamplingParams, tables: SlotTables, ids: range
) -> Adjustment:
    biased = bool(sampling.logit_bias)
    own, words = slice(ids.start, ids.stop), slice(ids.start // 32, -(-ids.stop // 32))
    return Adjustment(
        temperature=1.0 if sampling.greedy else sampling.temperature,
        counts=tables.counts[slot, own] if sampling.penalised or biased else None,
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=tables.bias[slot, own] if biased else None,
        mask=tables.mask[slot, depth, words] if tables.masked[slot] else None,
    )
