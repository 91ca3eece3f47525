"""What sampling parameters and slot tables do to the rows of a step before their candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.exact import log
from dgpp.sample.params import SamplingParams
from dgpp.sample.rng import uniform
from kernels_numba.backend import Logits
from kernels_numba.picks import Adjustment, Draw, Kept, Picker

F32Array = npt.NDArray[np.float32]


class RowSelector:
    """Turns each row's parameters into an `Adjustment` and lets the backend pick.

    Tables are of the whole vocabulary; logits and candidates are of the ids `vocabulary`, counted
    from its first, which is a multiple of 32. `began_ns` and `ended_ns` are the device's times of
    the last step collected.
    """

    def __init__(self, picker: Picker, vocabulary: range) -> None:
        self._picker = picker
        self._vocabulary = vocabulary
        self.began_ns = self.ended_ns = 0

    def warm_up(self, logits: Logits) -> None:
        """Compile every kernel of the selection."""
        self._picker.warm_up(logits)

    def launch(
        self,
        logits: Logits,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
        draws: Sequence[Draw] = (),
    ) -> None:
        """Begin to select from `logits` [R, V]; row r is of slots[r], a slot's rows in draft order.
        `draws` (one a row, or none at all) make the backend's own picks."""
        adjustments = []
        depth = 0
        for r, (slot, sampling) in enumerate(zip(slots, params, strict=True)):
            depth = depth + 1 if r and slots[r - 1] == slot else 0
            adjustment = _adjustment(slot, depth, sampling, tables, self._vocabulary)
            adjustments.append(replace(adjustment, draw=draws[r]) if draws else adjustment)
        self._picker.launch(logits, adjustments)

    def collect(self) -> Candidates:
        """Wait for what was launched."""
        picked = self._picker.collect()
        self.began_ns, self.ended_ns = picked.began_ns, picked.ended_ns
        return Candidates(
            picked.ids,
            picked.values,
            picked.held,
            picked.present,
            picked.lse,
            np.full(len(picked.held), -1, np.int32),
            picked.picks,
        )

    def select(
        self,
        logits: Logits,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
    ) -> Candidates:
        """`launch` and `collect`."""
        self.launch(logits, slots, params, tables)
        return self.collect()

    def adjusted(self, logits: Logits, rows: Sequence[int]) -> F32Array:
        """float32 [len(rows), V]: the rows as they were when last selected from."""
        return self._picker.adjusted(logits, rows)


def row_draw(slot: int, sampling: SamplingParams, seed: int, produced: int) -> Draw:
    """How the choice in `slot` draws token number `produced` of its answer."""
    greedy = sampling.greedy
    return Draw(
        slot,
        0.0 if greedy else uniform(seed, produced),
        sampling.top_k,
        log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf,
        sampling.top_p,
        greedy,
    )


def _adjustment(
    slot: int, depth: int, sampling: SamplingParams, tables: SlotTables, ids: range
) -> Adjustment:
    own, words = slice(ids.start, ids.stop), slice(ids.start // 32, -(-ids.stop // 32))
    kept: Kept | None = None
    if tables.changes:
        kept = Kept(slot, tables.changes[slot].opening, tables.changes[slot].ids, ids.start)
    return Adjustment(
        temperature=1.0 if sampling.greedy else sampling.temperature,
        counts=tables.counts[slot, own] if sampling.penalised else None,
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias=tables.bias[slot, own] if sampling.biased else None,
        mask=tables.mask[slot, depth, words] if tables.masked[slot] else None,
        kept=kept,
    )
