"""One step's candidates as the sampler walks them: lists for what every row needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dgpp.errors import DgppError
from dgpp.sample.candidates import Candidates
from dgpp.sample.head import Head, full_head

# Widths at which a whole row is tried; most that a list left open the first one decides.
_WIDTHS = (1024, 16384)


class CandidatesMismatchError(DgppError):
    """The candidates' rows are not those that the plan numbers: a bug of the engine."""


class Rows:
    """The rows of one step.

    `first` is the best id of each row (−1 where the mask left none), `drafts` the token fed after
    it, `picks` the engine's own choice (−1: none). `spans` are the (start, end) rows of each
    sampled slot. Whole rows join as they arrive.
    """

    __slots__ = ("_candidates", "_full", "drafts", "first", "picks", "spans")

    def __init__(self, candidates: Candidates, sampled: int) -> None:
        self._candidates = candidates
        self._full: dict[int, npt.NDArray[np.float32]] = {}
        self.first: list[int] = candidates.ids[:, 0].tolist()
        self.drafts: list[int] = candidates.drafts.tolist()
        self.picks: list[int] = candidates.picks.tolist()
        ends = [row for row, draft in enumerate(self.drafts, 1) if draft < 0]
        if len(ends) != sampled or (ends and ends[-1] != len(self.drafts)):
            raise CandidatesMismatchError(
                f"sampler: the engine's {len(self.drafts)} rows end {len(ends)} slots, the plan "
                f"samples {sampled}"
            )
        self.spans = list(zip([0, *ends], ends, strict=False))

    def add_full(self, rows: Sequence[int], logits: npt.NDArray[np.float32]) -> None:
        """`logits` is float32 [len(rows), vocab], −inf where masked."""
        self._full.update(zip(rows, logits, strict=True))

    def barren(self, row: int) -> bool:
        """Whether no id at all is left to choose from, as far as is known."""
        full = self._full.get(row)
        if full is not None:
            return not bool((full > -np.inf).any())
        return not self._candidates.present[row]

    def heads(self, row: int, temperature: float) -> Iterator[Head]:
        """Ever longer heads of `row`, as far as they can be had without asking the engine."""
        c = self._candidates
        present, lse = int(c.present[row]), float(c.lse[row])
        full = self._full.get(row)
        if full is None:
            held = int(c.held[row])
            yield Head(c.ids[row, :held], c.logits[row, :held], present, lse, temperature)
            return
        for width in (*(w for w in _WIDTHS if w < len(full)), len(full)):
            yield full_head(full, width, present, lse, temperature)
