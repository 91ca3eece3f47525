"""What every engine is: limits known before it loads, and steps launched and collected in order."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.scored import ScoredPrompt
from dgpp.sched.limits import EngineLimits
from dgpp.sched.plan import Plan


class StepTrace(NamedTuple):
    """How a step ran: `replayed` rows of it were a recorded step's (0: none was replayed), and the
    device stood idle for `gap_ns` between the decode step before it and itself (-1: either was
    none, or nobody knows)."""

    replayed: int = 0
    gap_ns: int = -1


class Engine(Protocol):
    """Executes plans one after the other, up to `limits.depth` of them ahead of what is collected.

    Launches come from one thread and collections from another one; each never waits for anything
    but the engine's own arithmetic. What a step found is kept until depth + 1 later ones are
    launched.
    """

    limits: EngineLimits
    trace: StepTrace
    """Of the step last collected."""
    scored: tuple[ScoredPrompt, ...]
    """What that step found of the prompts that ask how likely their tokens were."""

    def launch(self, plan: Plan, tables: SlotTables) -> None:
        """Begin the plan's step: run the model over its rows, adjust their logits by `tables` (read
        before this returns) and pick their candidates. At depth 0 it may do all of that here."""

    def collect(self, step: int) -> Candidates:
        """Wait for step `step` and return its candidates (rows as Plan numbers them, a slot's draft
        rows standing together in order). Steps are collected in order, each once."""

    def full_rows(self, step: int, rows: list[int]) -> npt.NDArray[np.float32]:
        """float32 [len(rows), vocab]: adjusted logits of rows of collected step `step`, -inf where
        masked; for the rows that their candidates could not decide."""
