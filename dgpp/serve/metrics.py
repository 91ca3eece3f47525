"""Everything the server counts, in one object, and its JSON form.

A section is a section of GET /metrics and a field is its key. Counters start at zero when the
server does; times are in the unit of their name. What a server has not built reads zero or false.
"""

from __future__ import annotations

import msgspec

from dgpp.sched.verdict import Finish
from dgpp.serve.histogram import GAP, LATENCY, STEP, TOKENS, Histogram


class DecodeBatch(msgspec.Struct):
    """Shapes of decode steps: slots replayed, slots that had a row, rows and padding."""

    last_slots: int = 0
    last_active: int = 0
    last_rows_per_request: int = 0
    replays: int = 0
    rows: int = 0
    padded_rows: int = 0
    replays_by_slots: dict[str, int] = msgspec.field(
        default_factory=lambda: {str(slots): 0 for slots in range(1, 17)}
    )


class SpecDecode(msgspec.Struct):
    """Draft tokens proposed and accepted, in all and by position."""

    depth: int = 0
    num_drafts_total: int = 0
    num_draft_tokens_total: int = 0
    num_accepted_tokens_total: int = 0
    num_draft_tokens_per_pos_total: list[int] = []
    num_accepted_tokens_per_pos_total: list[int] = []


class SchedulerMetrics(msgspec.Struct):
    """Requests by phase, blocks, tokens and steps."""

    active: int = 0
    queued: int = 0
    terminal: int = 0
    records: int = 0
    record_tokens: int = 0
    pool_blocks_total: int = 0
    pool_blocks_in_use: int = 0
    prefilling: int = 0
    tokens_generated: int = 0
    snapshot_age_ms: float = 0.0
    step_age_ms: float = 0.0
    prompts_prefilled: int = 0
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    decode_batch: DecodeBatch = msgspec.field(default_factory=DecodeBatch)
    spec_decode: SpecDecode = msgspec.field(default_factory=SpecDecode)
    prefill_ms: float = 0.0
    prefill_request_ms: float = 0.0
    step_ms: float = 0.0


class Admission(msgspec.Struct):
    """How requests are let in, as configured."""

    mode: str = "full"
    window: int = 256
    prefill_budget_tokens: int = -1
    prefill_idle_budget_tokens: int = 0


class ServiceMetrics(msgspec.Struct):
    """Requests as the front end sees them: one per HTTP request, whatever its `n`."""

    requests_total: int = 0
    requests_shed: int = 0
    pending_admissions: int = 0
    pending_cancellations: int = 0
    requests_cancelled: int = 0
    requests_shed_pool: int = 0
    requests_failed: int = 0
    engine_failed: bool = False
    reservations_grown: int = 0
    admission: Admission = msgspec.field(default_factory=Admission)
    tokens_out: int = 0
    rejects_bad: int = 0
    tool_calls_out: int = 0
    connections_refused: int = 0


class PrefixCacheMetrics(msgspec.Struct):
    """Snapshots held, and what they saved."""

    enabled: bool = False
    slots: int = 0
    min_tokens: int = 0
    head_cuts: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    snapshots: int = 0
    head_snapshots: int = 0
    close_entries: int = 0
    rolling_snapshots: int = 0
    hop_snapshots: int = 0
    evictions: int = 0
    duplicates: int = 0
    skipped_no_block: int = 0
    skipped_no_slot: int = 0
    skipped_image_bytes: int = 0
    image_bytes: int = 0
    blocks_pinned: int = 0
    snapshot_bytes: int = 0
    arena_snapshots: int = 0
    snapshot_ms_avg: float = 0.0
    arena_attaches: int = 0
    attach_ms_avg: float = 0.0
    ttft_hit_count: int = 0
    ttft_hit_ms_avg: float = 0.0
    ttft_miss_count: int = 0
    ttft_miss_ms_avg: float = 0.0
    key: str = ""


class PrefillRequest(msgspec.Struct):
    """One prompt being read."""

    id: str
    slot: int
    prompt_tokens: int
    processed_tokens: int
    cached_tokens: int
    computed_tokens: int
    remaining_tokens: int
    elapsed_ms: float


class PrefillMetrics(msgspec.Struct):
    """Prompts being read now, and their sums."""

    requests: list[PrefillRequest] = []
    prompt_tokens: int = 0
    processed_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    remaining_tokens: int = 0


class NvmeCacheMetrics(msgspec.Struct):
    """The cold tier of the prefix cache."""

    enabled: bool = False
    pages_total: int = 0
    pages_used: int = 0
    page_bytes: int = 0
    bytes_total: int = 0
    bytes_used: int = 0
    entries: int = 0
    blocks: int = 0
    spills: int = 0
    spilled: int = 0
    spill_failed: int = 0
    spill_skipped: int = 0
    restores: int = 0
    restored: int = 0
    restore_failed: int = 0
    tokens_restored: int = 0
    blocks_shared: int = 0
    evictions: int = 0
    pending: int = 0
    worker_pending: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    failures: int = 0
    spill_ms_avg: float = 0.0
    restore_ms_avg: float = 0.0


class CollectiveMetrics(msgspec.Struct):
    """What this rank did together with the others, as of its last step; all zero in a world of one.

    `path` says how (see dgpp.net.paths), `bytes` are its own parts; `waits` began before another
    rank's part was there.
    """

    path: str = ""
    all_reduces: int = 0
    all_gathers: int = 0
    barriers: int = 0
    bytes: int = 0
    waits: int = 0
    waited_s: float = 0.0


class Build(msgspec.Struct):
    """What runs here, as configured."""

    version: str = ""
    git_sha: str = ""
    world_size: int = 1
    max_concurrent_requests: int = 0
    queue_limit: int = 0
    kv_pool_tokens: int = 0


def _latency() -> Histogram:
    return Histogram.empty(LATENCY)


def _tokens() -> Histogram:
    return Histogram.empty(TOKENS)


class Histograms(msgspec.Struct):
    """Distributions over finished requests and steps; seconds, or tokens."""

    time_to_first_token_hit: Histogram = msgspec.field(default_factory=_latency)
    time_to_first_token_miss: Histogram = msgspec.field(default_factory=_latency)
    queue_time: Histogram = msgspec.field(default_factory=_latency)
    prefill_time: Histogram = msgspec.field(default_factory=_latency)
    decode_time: Histogram = msgspec.field(default_factory=_latency)
    e2e_latency: Histogram = msgspec.field(default_factory=_latency)
    time_per_output_token: Histogram = msgspec.field(default_factory=_latency)
    inter_token_latency: Histogram = msgspec.field(default_factory=_latency)
    decode_step_duration: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(STEP))
    decode_replay_gap: Histogram = msgspec.field(default_factory=lambda: Histogram.empty(GAP))
    nvme_cache_spill: Histogram = msgspec.field(default_factory=_latency)
    nvme_cache_restore: Histogram = msgspec.field(default_factory=_latency)
    prompt_tokens: Histogram = msgspec.field(default_factory=_tokens)
    generation_tokens: Histogram = msgspec.field(default_factory=_tokens)


class RankMetrics(msgspec.Struct):
    """One rank of several, itself included. `collectives` of all kinds by path (see
    dgpp.net.paths), of which `collective_waits` began before another rank's part was there; `ticks`
    is None for rank 0."""

    rank: int
    decode_steps: int = 0
    decode_step_seconds: float = 0.0
    prefill_seconds: float = 0.0
    generation_tokens: int = 0
    requests_running: int = 0
    kv_pool_blocks_total: int = 0
    kv_pool_blocks_in_use: int = 0
    collectives: dict[str, int] = {}
    collective_bytes: int = 0
    collective_waits: int = 0
    collective_wait_seconds: float = 0.0
    snapshot_age_seconds: float = 0.0
    ticks: int | None = None


REASONS = tuple(finish.name.lower() for finish in Finish)
"""Why requests end, by ordinal."""


class MetricsSnapshot(msgspec.Struct):
    """All sections at one moment. The last four have no JSON section of their own."""

    scheduler: SchedulerMetrics = msgspec.field(default_factory=SchedulerMetrics)
    service: ServiceMetrics = msgspec.field(default_factory=ServiceMetrics)
    prefix_cache: PrefixCacheMetrics = msgspec.field(default_factory=PrefixCacheMetrics)
    prefill: PrefillMetrics = msgspec.field(default_factory=PrefillMetrics)
    nvme_cache: NvmeCacheMetrics = msgspec.field(default_factory=NvmeCacheMetrics)
    collectives: CollectiveMetrics = msgspec.field(default_factory=CollectiveMetrics)
    build: Build = msgspec.field(default_factory=Build)
    finished: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    histograms: Histograms = msgspec.field(default_factory=Histograms)
    ranks: list[RankMetrics] = []

    def json(self) -> bytes:
        """The body of GET /metrics."""
        sections = ("scheduler", "service", "prefix_cache", "prefill", "nvme_cache", "collectives")
        return msgspec.json.encode({name: getattr(self, name) for name in sections})
