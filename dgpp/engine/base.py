"""What every engine is: limits known before it loads, and one step at a time."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sched.plan import Plan


class EngineLimits(msgspec.Struct, frozen=True):
    """The sizes that scheduler, sampler and front end agree on. All from configuration alone.

    `chunk_align` rows make one prefill tile: every chunk but a prompt's last is a multiple of it,
    and it is a multiple of `block_tokens`. `chunk_limit` bounds one step's prefill rows.
    `max_drafts` bounds the tokens of a step beyond the first, per slot.
    """

    slots: int
    vocab_size: int
    position_ceiling: int
    block_tokens: int
    blocks: int
    chunk_align: int
    chunk_limit: int
    candidates: int
    max_drafts: int = 0


class Engine(Protocol):
    """Executes plans. Called from one thread; never waits for anything but its own arithmetic."""

    limits: EngineLimits

    def forward(self, plan: Plan) -> None:
        """Run the model over the plan's rows; their logits stay inside until the next plan."""

    def select(self, tables: SlotTables) -> Candidates:
        """Adjust the last forward's rows and pick their candidates (rows as Plan numbers them,
        a slot's draft rows standing together in order)."""

    def full_rows(self, rows: list[int]) -> npt.NDArray[np.float32]:
        """float32 [len(rows), vocab]: adjusted logits of rows of the last `select`, -inf where
        masked; for the rows that their candidates could not decide."""
