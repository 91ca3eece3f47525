"""A snapshot of the scheduler for metrics and the stats line."""

from __future__ import annotations

import msgspec


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Levels now (first part) and totals since the start (second part).

    `retired` counts by `Finish` ordinal. Tokens are counts, blocks are KV blocks.
    """

    active: int
    prefilling: int
    queued: int
    slots: int
    blocks_in_use: int
    blocks: int

    steps: int
    submitted: int
    admitted: int
    refused: int
    retired: tuple[int, ...]
    prompt_tokens: int
    decode_rows: int
    tokens: int
