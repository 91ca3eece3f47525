"""An engine without a model: it plays scripts, so that all around the model can be driven."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.engine.base import EngineLimits
from dgpp.engine.script import ScriptLine, max_drafts
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.rng import draw
from dgpp.sched.plan import Open, Plan


class _Slot:
    """What one slot plays: a line, or without a script the random stream of its choice."""

    __slots__ = ("line", "max_tokens", "prompt_tokens", "seed", "steps")

    def __init__(self, opened: Open, line: ScriptLine | None, seed: int) -> None:
        self.line = line
        self.seed = seed
        self.prompt_tokens = opened.request.prompt_tokens
        self.max_tokens = opened.request.max_tokens
        self.steps = 0


class ScriptedEngine:
    """Plays one line of `lines` per choice: choice i of the journal gets line i, wrapping.

    The step that ends the prompt gives one token, as for every engine; the decode steps after it
    give `per_step` tokens in turn, each a row whose distribution is the scripted id alone, fed as
    a draft to the row after it. Past its last id a line begins again. Where a mask forbids the
    scripted id, the row's only id is the lowest that it allows. Without lines the ids are random:
    numbers of the counter-based generator keyed by `seed` and the choice's number.

    `limits.max_drafts` is raised to what the lines need. The engine's actor keeps the pace of
    `engine.step_ms`; the engine reads no clock.
    """

    def __init__(
        self,
        limits: EngineLimits,
        lines: Sequence[ScriptLine] = (),
        *,
        seed: int = 0,
    ) -> None:
        drafts = max(limits.max_drafts, max_drafts(lines))
        self.limits = msgspec.structs.replace(limits, max_drafts=drafts)
        self._lines = lines
        self._seed = seed
        self._slots: dict[int, _Slot] = {}
        # Of the last plan: per row its slot, its place among the slot's rows, the scripted id.
        self._rows: list[tuple[int, int, int]] = []
        self._drafts: list[int] = []
        self._selected: list[int] = []
        most = limits.slots * (1 + drafts)
        self._ids = np.full((most, 1), -1, np.int32)
        self._zeros = np.zeros((most, 1), np.float32)
        self._ones = np.ones(most, np.int32)
        self._lse = np.zeros(most, np.float64)
        self._draft_column = np.full(most, -1, np.int32)

    def forward(self, plan: Plan) -> None:
        """Lay out the plan's rows."""
        slots = self._slots
        for slot in plan.closes:
            del slots[slot]
        for opened in plan.opens:
            lines = self._lines
            line = lines[opened.arrival % len(lines)] if lines else None
            slots[opened.slot] = _Slot(opened, line, self._seed + opened.arrival)
        self._rows = []
        self._drafts = []
        for chunk in plan.prefills:
            if chunk.last:
                self._lay(chunk.slot, 0, 1)
        for row in plan.decodes:
            state = slots[row.slot]
            produced = row.position - state.prompt_tokens + 1
            count = 1
            if state.line is not None:
                per_step = state.line.per_step
                count = per_step[state.steps % len(per_step)]
            state.steps += 1
            self._lay(row.slot, produced, min(count, state.max_tokens - produced))

    def select(self, tables: SlotTables) -> Candidates:
        """One candidate a row: arrays of K = 1, valid until the next call."""
        ids = [scripted for _, _, scripted in self._rows]
        masked = tables.masked.tolist()
        for row, (slot, place, scripted) in enumerate(self._rows):
            if masked[slot]:
                rows = tables.mask[slot]
                ids[row] = _allowed(rows[min(place, len(rows) - 1)], scripted)
        self._selected = ids
        count = len(ids)
        self._ids[:count, 0] = ids
        self._draft_column[:count] = self._drafts
        ones, lse = self._ones[:count], self._lse[:count]
        if -1 in ids:
            ones = (self._ids[:count, 0] >= 0).astype(np.int32)
            lse = np.where(ones > 0, 0.0, -np.inf)
        return Candidates(
            self._ids[:count], self._zeros[:count], ones, ones, lse, self._draft_column[:count]
        )

    def full_rows(self, rows: list[int]) -> npt.NDArray[np.float32]:
        """float32 [len(rows), vocab]: 0 at the row's id, −inf elsewhere."""
        logits = np.full((len(rows), self.limits.vocab_size), -np.inf, np.float32)
        for index, row in enumerate(rows):
            if self._selected[row] >= 0:
                logits[index, self._selected[row]] = 0.0
        return logits

    def _lay(self, slot: int, produced: int, count: int) -> None:
        ids = self._script(self._slots[slot], produced, count)
        self._rows.extend((slot, place, token) for place, token in enumerate(ids))
        self._drafts.extend(ids[:-1])
        self._drafts.append(-1)

    def _script(self, state: _Slot, produced: int, count: int) -> list[int]:
        """Tokens `produced` … `produced + count − 1` of the choice."""
        if state.line is None:
            vocab = self.limits.vocab_size
            return [draw(state.seed, produced + n) % vocab for n in range(count)]
        ids = state.line.ids
        return [ids[(produced + n) % len(ids)] for n in range(count)]


def _allowed(mask: npt.NDArray[np.uint32], scripted: int) -> int:
    """`scripted` where the mask row allows it, else the lowest allowed id, else −1."""
    if (int(mask[scripted >> 5]) >> (scripted & 31)) & 1:
        return scripted
    words = np.flatnonzero(mask)
    if not len(words):
        return -1
    word = int(words[0])
    bits = int(mask[word])
    return 32 * word + (bits & -bits).bit_length() - 1
