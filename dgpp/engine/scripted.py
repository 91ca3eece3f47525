"""An engine without a model: it plays scripts, so that all around the model can be driven."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.engine.base import StepTrace
from dgpp.engine.script import ScriptLine, max_drafts
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.rng import draw
from dgpp.sample.scored import ScoredPrompt
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import FED, DecodeRow, Open, Plan, PrefillChunk
from dgpp.text.delta import RowLogprobs

_OPEN_LSE = 40.0
"""Against a logit of 0: the one candidate of a row left open weighs next to nothing."""


class _Slot:
    """What one slot plays: a line, or without a script the random stream of its choice."""

    __slots__ = ("astray", "line", "max_tokens", "next", "prompt_tokens", "scored", "seed", "steps")

    def __init__(self, opened: Open, line: ScriptLine | None, seed: int) -> None:
        self.line = line
        self.seed = seed
        self.prompt_tokens = opened.request.prompt_tokens
        self.max_tokens = opened.request.max_tokens
        self.scored = opened.request.scored
        self.steps = 0
        # Where a row that feeds the engine's own pick must stand, and whether there is such a pick.
        self.next = self.prompt_tokens
        self.astray = False

    def is_open(self, produced: int) -> bool:
        """Whether token number `produced` is one that the engine leaves open."""
        every = 0 if self.line is None else self.line.undecided
        return every > 0 and (produced + 1) % every == 0


class _Row(NamedTuple):
    """A row's slot, its place among the slot's rows, its id, the draft fed after it (−1: none),
    and whether it is left open."""

    slot: int
    place: int
    token: int
    draft: int
    is_open: bool


class _Step(NamedTuple):
    """A launched step."""

    number: int
    candidates: Candidates
    scored: tuple[ScoredPrompt, ...]


class ScriptedEngine:
    """Plays one line of `lines` per choice: choice i of the journal gets line i, wrapping.

    The step that ends the prompt gives one token, as for every engine; the decode steps after it
    give `per_step` tokens in turn, each a row whose distribution is the scripted id alone, fed as
    a draft to the row after it. Past its last id a line begins again. Where a mask forbids the
    scripted id, the row's only id is the lowest that it allows. Without lines the ids are random:
    numbers of the counter-based generator keyed by `seed` and the choice's number.

    Ahead of verdicts (`limits.depth`) it picks the scripted id itself, and a row that feeds a pick
    which was left open gives a wrong id, as a model would. Of prompts it knows nothing: where
    one is to be scored, every id is as likely as the next.

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
        self.trace = StepTrace()
        self.scored: tuple[ScoredPrompt, ...] = ()
        self._lines = lines
        self._seed = seed
        self._slots: dict[int, _Slot] = {}
        self._steps: deque[_Step] = deque(maxlen=limits.depth + 1)

    def launch(self, plan: Plan, tables: SlotTables) -> None:
        """Play the plan's rows."""
        slots = self._slots
        for slot in plan.closes:
            del slots[slot]
        for opened in plan.opens:
            lines = self._lines
            line = lines[opened.arrival % len(lines)] if lines else None
            slots[opened.slot] = _Slot(opened, line, self._seed + opened.arrival)
        rows: list[_Row] = []
        for chunk in plan.prefills:
            if chunk.last:
                self._play(rows, chunk.slot, 0, 1)
        for row in plan.decodes:
            self._decode(rows, row, alone=bool(tables.masked[row.slot]))
        scored = tuple(
            self._score(chunk) for chunk in plan.prefills if slots[chunk.slot].scored >= 0
        )
        self._steps.append(_Step(plan.step, self._candidates(rows, tables), scored))

    def collect(self, step: int) -> Candidates:
        found = self._step(step)
        self.scored = found.scored
        return found.candidates

    def full_rows(self, step: int, rows: list[int]) -> npt.NDArray[np.float32]:
        """float32 [len(rows), vocab]: 0 at the row's id, −inf elsewhere."""
        logits = np.full((len(rows), self.limits.vocab_size), -np.inf, np.float32)
        for index, token in enumerate(self._step(step).candidates.ids[rows, 0].tolist()):
            if token >= 0:
                logits[index, token] = 0.0
        return logits

    def _step(self, number: int) -> _Step:
        found = next((step for step in self._steps if step.number == number), None)
        assert found is not None, f"step {number} is not kept"
        return found

    def _decode(self, rows: list[_Row], row: DecodeRow, *, alone: bool) -> None:
        """`alone`: what follows a row is not known before its verdict, so there are no drafts."""
        state = self._slots[row.slot]
        produced = row.position - state.prompt_tokens + 1
        if row.token == FED:
            assert row.position == state.next, f"slot {row.slot}: a pick is fed elsewhere"
        else:
            state.astray = False
        count = 1
        if state.line is not None and not alone:
            per_step = state.line.per_step
            count = per_step[state.steps % len(per_step)]
        state.steps += 1
        self._play(rows, row.slot, produced, min(count, state.max_tokens - produced))

    def _play(self, rows: list[_Row], slot: int, produced: int, count: int) -> None:
        """Rows of tokens `produced` … `produced + count − 1` of the slot's choice."""
        state = self._slots[slot]
        ids = [self._scripted(state, produced + n) for n in range(count)]
        if state.astray:
            ids = [(token + 1) % self.limits.vocab_size for token in ids]
        for place, token in enumerate(ids):
            draft = ids[place] if place + 1 < count else -1
            rows.append(_Row(slot, place, token, draft, state.is_open(produced + place)))
        state.astray |= rows[-1].is_open
        state.next = state.prompt_tokens + produced + count - 1

    def _score(self, chunk: PrefillChunk) -> ScoredPrompt:
        """Of the tokens after each of the chunk's, inside the prompt."""
        state, size = self._slots[chunk.slot], self.limits.vocab_size
        alike = -math.log(size)
        top = tuple(range(min(state.scored, size)))
        row = RowLogprobs(alike, top, (alike,) * len(top))
        count = min(chunk.count, state.prompt_tokens - 1 - chunk.start)
        return ScoredPrompt(chunk.slot, (row,) * count)

    def _scripted(self, state: _Slot, number: int) -> int:
        if state.line is None:
            return draw(state.seed, number) % self.limits.vocab_size
        ids = state.line.ids
        return ids[number % len(ids)]

    def _candidates(self, rows: list[_Row], tables: SlotTables) -> Candidates:
        """One candidate a row."""
        masked = tables.masked.tolist()
        tokens = [
            _allowed(tables.mask[row.slot], row.place, row.token) if masked[row.slot] else row.token
            for row in rows
        ]
        present = [int(token >= 0) for token in tokens]
        held = np.array(present, np.int32)
        lse = [0.0 if any_id else -math.inf for any_id in present]
        picks = list(tokens) if self.limits.depth else [-1] * len(rows)
        for index, row in enumerate(rows):
            if row.is_open:
                present[index], lse[index], picks[index] = self.limits.vocab_size, _OPEN_LSE, -1
        return Candidates(
            np.array(tokens, np.int32)[:, None],
            np.zeros((len(rows), 1), np.float32),
            held,
            np.array(present, np.int32),
            np.array(lse, np.float64),
            np.array([row.draft for row in rows], np.int32),
            np.array(picks, np.int32),
        )


def _allowed(masks: npt.NDArray[np.uint32], place: int, scripted: int) -> int:
    """`scripted` where the mask of the row allows it, else the lowest allowed id, else −1."""
    mask = masks[min(place, len(masks) - 1)]
    if (int(mask[scripted >> 5]) >> (scripted & 31)) & 1:
        return scripted
    words = np.flatnonzero(mask)
    if not len(words):
        return -1
    word = int(words[0])
    bits = int(mask[word])
    return 32 * word + (bits & -bits).bit_length() - 1
