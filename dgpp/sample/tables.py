"""The per-slot tables that an engine applies to raw logits, kept from the plans it gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import SlotTables, TableChanges
from dgpp.sched.plan import Plan
from dgpp.sched.request import Submit


def allocate_tables(slots: int, vocab_size: int, mask_rows: int = 1) -> SlotTables:
    """Zeroed tables on this process's heap."""
    words = -(-vocab_size // 32)
    return SlotTables(
        np.zeros((slots, vocab_size), np.int32),
        np.zeros((slots, vocab_size), np.float32),
        np.zeros((slots, mask_rows, words), np.uint32),
        np.zeros(slots, np.int32),
        [TableChanges() for _ in range(slots)],
    )


NEVER = np.float32(-1e30)
"""The bias of an id that must not come yet: its weight is 0, and no arithmetic breaks on it."""


class TableWriter:
    """Keeps `tables` true to the choices that hold the slots.

    Every token of a choice passes through the plans, the prompt with its opening and each
    committed token when it is fed, so an engine needs to be told nothing else. An engine that
    feeds drafts counts those itself: plans name the last token of a step only.

    Rows of choices without penalties or bias are cleared only where a former holder wrote them.
    Until a choice has its `min_tokens`, its end tokens have a bias that rules them out.
    """

    __slots__ = ("_biased", "_counted", "_endless", "tables")

    def __init__(self, tables: SlotTables) -> None:
        self.tables = tables
        self._counted = [False] * len(tables.counts)
        self._biased = [False] * len(tables.counts)
        self._endless: dict[int, Submit] = {}

    def advance(self, plan: Plan) -> None:
        """Take in the choices that `plan` opens and the tokens that it feeds."""
        for opened in plan.opens:
            self._open(opened.slot, opened.request)
        for row in plan.decodes:
            if self._counted[row.slot]:
                self.tables.counts[row.slot, row.token] += 1
                self.tables.changes[row.slot].ids.append(row.token)
            if self._endless and row.slot in self._endless:
                self._let_end(row.slot, row.position)

    def mask(self, slots: Sequence[int], masks: npt.NDArray[np.uint32]) -> None:
        """What may follow in each of `slots`: uint32 [len(slots), ⌈V / 32⌉], row by row."""
        for slot, row in zip(slots, masks, strict=True):
            self.tables.mask[slot, 0] = row
            self.tables.masked[slot] = 1

    def _open(self, slot: int, submit: Submit) -> None:
        """`slot` now belongs to `submit`: its prompt's counts, its bias, no mask."""
        tables, params = self.tables, submit.sampling
        changes = tables.changes[slot]
        changes.opening, changes.ids = changes.opening + 1, []
        tables.masked[slot] = 0
        if self._counted[slot]:
            tables.counts[slot] = 0
        self._counted[slot] = params.penalised
        if params.penalised:
            vocab = tables.counts.shape[1]
            tables.counts[slot] = np.bincount(submit.prompt_ids, minlength=vocab)
        if self._biased[slot]:
            tables.bias[slot] = 0.0
        self._biased[slot] = params.biased
        for token, bias in params.logit_bias:
            tables.bias[slot, token] = bias
        self._endless.pop(slot, None)
        if params.min_tokens and submit.stop_ids:
            tables.bias[slot, list(submit.stop_ids)] = NEVER
            self._endless[slot] = submit

    def _let_end(self, slot: int, position: int) -> None:
        """Once the row at `position` draws a token beyond the least number, any may come."""
        submit = self._endless[slot]
        if position + 1 - submit.prompt_tokens >= submit.sampling.min_tokens:
            del self._endless[slot]
            own = dict(submit.sampling.logit_bias)
            for token in submit.stop_ids:
                self.tables.bias[slot, token] = own.get(token, 0.0)
                self.tables.changes[slot].ids.append(token)
