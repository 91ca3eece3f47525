"""Which rows of a step tell how likely a prompt's own tokens were, and what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dgpp.engine.row_selection import RowSelector
from dgpp.engine.sharded_selection import ShardedSelector
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.params import SamplingParams
from dgpp.sample.scored import ScoredPrompt, row_scores, untold
from dgpp.sched.plan import Plan
from dgpp.sched.request import Submit
from dgpp.text.delta import RowLogprobs
from kernels_numba.backend import Logits

I32Array = npt.NDArray[np.int32]

_PLAIN = SamplingParams(temperature=0.0)
"""The model's own distribution: temperature 1, nothing added."""


class ScoredRows(NamedTuple):
    """Rows `first` … `first + len(tokens) − 1` of a step, each to be followed by its token."""

    slot: int
    top: int
    first: int
    tokens: I32Array


class _Held(Protocol):
    """What the engine keeps of a slot's choice."""

    @property
    def prompt(self) -> I32Array: ...

    @property
    def request(self) -> Submit: ...


def scored_rows(plan: Plan, held: Callable[[int], _Held]) -> Iterator[ScoredRows]:
    """The rows of the plan's chunks that ask for it: all but the last row of a prompt."""
    at = 0
    for chunk in plan.prefills:
        choice = held(chunk.slot)
        end = chunk.start + chunk.count
        if choice.request.scored >= 0:
            tokens = choice.prompt[chunk.start + 1 : end + 1]
            if len(tokens):
                yield ScoredRows(chunk.slot, choice.request.scored, at, tokens)
        at += chunk.count


class PromptScorer:
    """Scores rows of the step whose forward pass ran last.

    `head(index, logits)` writes the logits of rows `index` to `logits`, which have room for
    `capacity` of them and go through `selector`: more rows take several turns, each waited for.
    """

    def __init__(
        self,
        head: Callable[[Sequence[int], Logits], None],
        logits: Logits,
        selector: RowSelector | ShardedSelector,
        capacity: int,
        check: Callable[[Candidates], None],
    ) -> None:
        self._head = head
        self._logits = logits
        self._selector = selector
        self._capacity = capacity
        self._check = check

    def score(self, rows: ScoredRows, tables: SlotTables) -> ScoredPrompt:
        """What they say of their tokens. `tables` are the step's; no choice whose prompt is scored
        has a mask, and what else they hold is not asked for."""
        scores: list[RowLogprobs] = []
        for begin in range(0, len(rows.tokens), self._capacity):
            tokens = rows.tokens[begin : begin + self._capacity].tolist()
            self._head(range(rows.first + begin, rows.first + begin + len(tokens)), self._logits)
            scores += self._turn(tokens, rows, tables)
        return ScoredPrompt(rows.slot, tuple(scores))

    def _turn(self, tokens: list[int], rows: ScoredRows, tables: SlotTables) -> list[RowLogprobs]:
        count = len(tokens)
        found = self._selector.select(self._logits, [rows.slot] * count, [_PLAIN] * count, tables)
        self._check(found)
        asked = untold(found, tokens, rows.top)
        whole = {}
        if asked:
            whole = dict(zip(asked, self._selector.adjusted(self._logits, asked), strict=True))
        return row_scores(found, tokens, rows.top, whole)
