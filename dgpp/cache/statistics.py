"""What the prefix cache counts, in the words of GET /metrics."""

from __future__ import annotations

import msgspec


class CacheCounters(msgspec.Struct):
    """Totals since the start.

    `hits` and `misses` are prompts that found something or nothing, `tokens_saved` what the hits
    did not have to read. Entries made: `snapshots` of prompts (`head_snapshots` among them),
    `close_entries`; `rolling_snapshots` copies while decoding. `duplicates` existed already.
    `skipped_no_block` and `skipped_no_slot` found no room. `arena_*` count copies of rings and
    fixed state.
    """

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    snapshots: int = 0
    head_snapshots: int = 0
    close_entries: int = 0
    rolling_snapshots: int = 0
    evictions: int = 0
    duplicates: int = 0
    skipped_no_block: int = 0
    skipped_no_slot: int = 0
    arena_snapshots: int = 0
    arena_attaches: int = 0


class CacheStatistics(msgspec.Struct, frozen=True):
    """Levels now, and the totals. At most `slots` entries are kept."""

    slots: int
    entries: int
    blocks: int
    reclaimable: int
    counters: CacheCounters
