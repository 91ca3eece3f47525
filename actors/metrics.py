"""The statistics that each role keeps in its shared block."""

from __future__ import annotations

from actors.reading import GAUGES as READING
from actors.statistics import Metric
from dgpp.cache.statistics import CacheCounters
from dgpp.cache.tier import TierCounters
from dgpp.net.paths import NAMES
from dgpp.serve.histogram import GAP, LATENCY, STEP, TOKENS
from dgpp.serve.metrics import REASONS


def _counters(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, "counter") for name in names)


def _gauges(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, "gauge") for name in names)


def _histograms(buckets: tuple[float, ...], *names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name, "histogram", buckets) for name in names)


CACHE_LEVELS = ("cache_entries", "cache_blocks")
TIER_LEVELS = ("tier_pages_used", "tier_entries", "tier_pending")
TIER_COUNTERS = tuple(f"tier_{name}" for name in TierCounters.__struct_fields__)
COLD_FIGURES = (
    *("bytes_written", "bytes_read", "failures"),
    *("spills", "spill_ns", "restores", "restore_ns"),
)
"""What the disk tier's thread counts."""
COLLECTIVE_FIGURES = ("all_reduces", "all_gathers", "barriers", "bytes", "waits", "waited_s")
"""What the collectives count themselves."""
CACHE_COUNTERS = tuple(f"cache_{name}" for name in CacheCounters.__struct_fields__)
"""The scheduler counts these itself; its actor copies them."""

SCHEDULER = (
    *_gauges("active", "prefilling", "queued", "blocks_in_use", "reservations_grown"),
    *_gauges("levels_s", "step_began_s", "cancelling", *READING),
    *_gauges(*CACHE_LEVELS, *CACHE_COUNTERS, *TIER_LEVELS, *TIER_COUNTERS),
    *_counters(
        "ticks",
        "steps",
        "decode_steps",
        "decode_rows",
        "decode_step_ns",
        "prefill_step_ns",
        "prefill_request_ns",
        "prompts",
        "prompt_tokens",
        "cached_tokens",
        "tokens",
        "submitted",
        "admitted",
        "refused",
        *(f"finished_{reason}" for reason in REASONS),
    ),
    *_histograms(STEP, "step_seconds", "inter_token_seconds"),
    *_histograms(LATENCY, "queue_seconds", "prefill_seconds", "decode_seconds"),
    *_histograms(TOKENS, "request_prompt_tokens", "request_generation_tokens"),
)
MOST_ROWS = 16
"""Rows of the widest recorded step."""
ENGINE = (
    *_gauges(*(f"collectives_{path}" for path in NAMES)),
    *_gauges("last_rows", "cold_waiting", *(f"cold_{name}" for name in COLD_FIGURES)),
    *_gauges(*(f"collective_{name}" for name in COLLECTIVE_FIGURES)),
    *_counters(*(f"replays_{rows}" for rows in range(1, MOST_ROWS + 1))),
    *_histograms(GAP, "replay_gap_seconds"),
    *_histograms(LATENCY, "cold_spill_seconds", "cold_restore_seconds"),
)
MOST_DRAFTS = 16
"""Positions of drafts that are counted one by one."""
SAMPLER = (
    *_counters("drafts", "draft_tokens", "accepted_tokens"),
    *_counters(*(f"drafted_{position}" for position in range(MOST_DRAFTS))),
    *_counters(*(f"accepted_{position}" for position in range(MOST_DRAFTS))),
)
HTTP = (
    *_gauges("at_door", "in_flight"),
    *_counters("requests", "shed", "cancelled", "failed", "rejected", "connections_refused"),
    *_counters("tool_calls"),
    *_histograms(LATENCY, "first_token_seconds", "first_token_hit_seconds"),
    *_histograms(LATENCY, "request_seconds", "time_per_token_seconds"),
)
