"""A snapshot of the scheduler for metrics and the stats line."""

from __future__ import annotations

import msgspec

from dgpp.cache.statistics import CacheStatistics
from dgpp.cache.tier import TierStatistics


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Levels now (first part) and totals since the start (second part).

    `retired` counts by `Finish` ordinal. Tokens are counts, blocks are KV blocks: `blocks_in_use`
    those that live choices hold, and the cache's own are in `cache` (None without one).
    `prompt_tokens` were computed, `cached_tokens` found in the cache.
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
    cached_tokens: int = 0
    reservations_grown: int = 0
    shed: int = 0
    cache: CacheStatistics | None = None
    tier: TierStatistics | None = None
