"""What every engine is: limits known before it loads, and steps launched and collected in order."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.scored import ScoredPrompt
from dgpp.sched.plan import Plan


class EngineLimits(msgspec.Struct, frozen=True):
    """The sizes that scheduler, sampler and front end agree on. All from configuration alone.

    `chunk_align` rows make one prefill tile: every chunk but a prompt's last is a multiple of it,
    and it and `block_tokens` are multiples one of the other. `chunk_limit` bounds one step's
    prefill rows.
    `max_drafts` bounds the tokens of a step beyond the first, per slot. `depth` is how many plans
    the engine takes before it has answered one: with 1, it feeds its own picks (`FED` rows).
    `refeeds` says that a position may be fed again: all that is kept of a request is kept by
    position, where state that every token moves on (recurrent, convolution) is not.
    `snapshots` bounds the entries of the prefix cache, 0 for none. `snapshot_bytes` is what a slot
    owns beside its blocks, and so the size of a snapshot. What drafts keep of a token depends on
    `lookahead` tokens after it. The last `reread` tokens of a prompt are always read, whatever is
    cached: some layers read these alone of it. The cache's disk has `cold_pages` of a block each,
    0 for none, of `cold_page_bytes`; a snapshot takes `cold_blob_pages`.
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
    depth: int = 0
    refeeds: bool = True
    snapshots: int = 0
    snapshot_bytes: int = 0
    lookahead: int = 0
    reread: int = 1
    cold_pages: int = 0
    cold_blob_pages: int = 0
    cold_page_bytes: int = 0

    @property
    def paged_only(self) -> bool:
        """Whether blocks hold all state, so that whatever is cached of a prefix can be shared."""
        return not self.snapshot_bytes


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
