"""The metrics as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dgpp.serve.metrics import MetricsSnapshot, RankMetrics
from dgpp.serve.vllm_names import VllmNames

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Sequence[tuple[dict[str, str], float]]
Value = Callable[[MetricsSnapshot], float]


def _usage(snapshot: MetricsSnapshot) -> float:
    total = snapshot.scheduler.pool_blocks_total
    return snapshot.scheduler.pool_blocks_in_use / total if total else 0.0


def _seconds(path: str) -> Value:
    read = attrgetter(path)
    return lambda snapshot: read(snapshot) / 1000.0


def _whole_seconds(count: str, average: str) -> Value:
    """Seconds in all, from a count and an average in milliseconds."""
    read = attrgetter(count, average)

    def value(snapshot: MetricsSnapshot) -> float:
        number, milliseconds = read(snapshot)
        return float(number * milliseconds / 1000.0)

    return value


def _of(section: str, *names: str, prefix: str = "") -> list[tuple[str, Value]]:
    """(name, reader) of fields that keep their names."""
    return [(prefix + name, attrgetter(f"{section}.{name}")) for name in names]


_GAUGES: list[tuple[str, Value]] = [
    ("engine_failed", attrgetter("service.engine_failed")),
    *_of("build", "max_concurrent_requests", "queue_limit", "kv_pool_tokens"),
    ("admission_window_tokens", attrgetter("service.admission.window")),
    ("admission_prefill_budget_tokens", attrgetter("service.admission.prefill_budget_tokens")),
    (
        "admission_prefill_idle_budget_tokens",
        attrgetter("service.admission.prefill_idle_budget_tokens"),
    ),
    ("num_requests_running", attrgetter("scheduler.active")),
    ("num_requests_waiting", attrgetter("scheduler.queued")),
    ("num_requests_prefilling", attrgetter("scheduler.prefilling")),
    *_of("service", "pending_admissions", "pending_cancellations"),
    ("kv_pool_blocks_total", attrgetter("scheduler.pool_blocks_total")),
    ("kv_pool_blocks_in_use", attrgetter("scheduler.pool_blocks_in_use")),
    ("kv_cache_usage_perc", _usage),
    ("scheduler_snapshot_age_seconds", _seconds("scheduler.snapshot_age_ms")),
    ("scheduler_step_age_seconds", _seconds("scheduler.step_age_ms")),
    ("prefill_inflight_prompt_tokens", attrgetter("prefill.prompt_tokens")),
    ("prefill_inflight_remaining_tokens", attrgetter("prefill.remaining_tokens")),
    *_of(
        "scheduler.decode_batch",
        *("last_slots", "last_active", "last_rows_per_request"),
        prefix="decode_batch_",
    ),
    ("spec_decode_depth", attrgetter("scheduler.spec_decode.depth")),
    *_of(
        "prefix_cache",
        *("slots", "entries", "blocks_pinned", "snapshot_bytes"),
        prefix="prefix_cache_",
    ),
    ("nvme_cache_capacity_bytes", attrgetter("nvme_cache.bytes_total")),
    ("nvme_cache_used_bytes", attrgetter("nvme_cache.bytes_used")),
    *_of("nvme_cache", "entries", "blocks", "pending", "worker_pending", prefix="nvme_cache_"),
]

_SPEC = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_CACHE = (
    *("hits", "misses", "tokens_saved", "snapshots", "head_snapshots", "close_entries"),
    *("rolling_snapshots", "hop_snapshots", "evictions", "duplicates", "skipped_no_block"),
    *("skipped_no_slot", "skipped_image_bytes", "arena_snapshots", "arena_attaches"),
)
_DISK = (
    *("spills", "spilled", "spill_failed", "spill_skipped"),
    *("restores", "restored", "restore_failed", "tokens_restored"),
    *("blocks_shared", "evictions", "failures"),
)

_COUNTERS: list[tuple[str, Value]] = [
    ("requests", attrgetter("service.requests_total")),
    *_of("service", "requests_shed", "requests_shed_pool", "requests_cancelled"),
    *_of("service", "requests_failed", "reservations_grown", "connections_refused"),
    ("requests_rejected", attrgetter("service.rejects_bad")),
    ("tool_calls", attrgetter("service.tool_calls_out")),
    *_of("scheduler", "prompt_tokens", "prompt_tokens_computed", "prompts_prefilled"),
    (
        "prompt_tokens_cached",
        lambda s: s.scheduler.prompt_tokens - s.scheduler.prompt_tokens_computed,
    ),
    ("generation_tokens", attrgetter("scheduler.tokens_generated")),
    ("prefill_seconds", _seconds("scheduler.prefill_ms")),
    ("prefill_request_seconds", _seconds("scheduler.prefill_request_ms")),
    *_of("scheduler", "decode_steps", "decode_rows"),
    ("decode_step_seconds", _seconds("scheduler.step_ms")),
    *_of("scheduler.decode_batch", "replays", "rows", "padded_rows", prefix="decode_batch_"),
    *((f"spec_decode_{n}", attrgetter(f"scheduler.spec_decode.{n}_total")) for n in _SPEC),
    *_of("prefix_cache", *_CACHE, prefix="prefix_cache_"),
    ("prefix_cache_queries", lambda s: s.prefix_cache.hits + s.prefix_cache.misses),
    (
        "prefix_cache_arena_snapshot_seconds",
        _whole_seconds("prefix_cache.arena_snapshots", "prefix_cache.snapshot_ms_avg"),
    ),
    (
        "prefix_cache_arena_attach_seconds",
        _whole_seconds("prefix_cache.arena_attaches", "prefix_cache.attach_ms_avg"),
    ),
    *_of("nvme_cache", *_DISK, prefix="nvme_cache_"),
    ("nvme_cache_written_bytes", attrgetter("nvme_cache.bytes_written")),
    ("nvme_cache_read_bytes", attrgetter("nvme_cache.bytes_read")),
]

_HISTOGRAMS = {
    "request_queue_time_seconds": "queue_time",
    "request_prefill_time_seconds": "prefill_time",
    "request_decode_time_seconds": "decode_time",
    "e2e_request_latency_seconds": "e2e_latency",
    "request_time_per_output_token_seconds": "time_per_output_token",
    "inter_token_latency_seconds": "inter_token_latency",
    "decode_step_duration_seconds": "decode_step_duration",
    "decode_replay_gap_seconds": "decode_replay_gap",
    "nvme_cache_spill_duration_seconds": "nvme_cache_spill",
    "nvme_cache_restore_duration_seconds": "nvme_cache_restore",
    "request_prompt_tokens": "prompt_tokens",
    "request_generation_tokens": "generation_tokens",
}

_RANK_COUNTERS = (
    *("decode_steps", "decode_step_seconds", "prefill_seconds", "generation_tokens"),
    *("collective_bytes", "collective_waits", "collective_wait_seconds"),
)
_RANK_GAUGES = {
    "num_requests_running": "requests_running",
    "kv_pool_blocks_total": "kv_pool_blocks_total",
    "kv_pool_blocks_in_use": "kv_pool_blocks_in_use",
    "snapshot_age_seconds": "snapshot_age_seconds",
}


def prometheus_text(snapshot: MetricsSnapshot, model_name: str, compat: str = "none") -> bytes:
    """The body of GET /metrics/prometheus, text format 0.0.4; with `compat` "vllm" also under the
    names that dashboards for vLLM query."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Exposition(snapshot, model_name))
    if compat == "vllm":
        registry.register(VllmNames(snapshot, model_name))
    return generate_latest(registry)


def ranks_text(snapshot: MetricsSnapshot, model_name: str) -> bytes:
    """The same of `snapshot.ranks` alone: what a rank beyond the first says."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RanksExposition(snapshot, model_name))
    return generate_latest(registry)


class _Exposition(Collector):
    def __init__(self, snapshot: MetricsSnapshot, model_name: str) -> None:
        self._snapshot = snapshot
        self._model = model_name

    def collect(self) -> Iterator[Metric]:
        spec = self._snapshot.scheduler.spec_decode
        for name in _SPEC:
            total = getattr(spec, f"{name}_total")
            yield CounterMetricFamily(f"spec_decode_{name}", _help(name), value=total)
        yield self._build()
        for name, read in _GAUGES:
            yield self._gauge(name, [({}, read(self._snapshot))])
        for name, read in _COUNTERS:
            yield self._counter(name, [({}, read(self._snapshot))])
        yield from self._labelled()
        yield from self._histograms()
        if self._snapshot.ranks:
            yield from self._ranks(self._snapshot.ranks)

    def _build(self) -> Metric:
        build = self._snapshot.build
        labels = {
            "version": build.version,
            "git_sha": build.git_sha,
            "world_size": str(build.world_size),
            "admission": self._snapshot.service.admission.mode,
        }
        return self._gauge("build_info", [(labels, 1)])

    def _labelled(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        finished = [({"reason": reason}, count) for reason, count in snapshot.finished.items()]
        yield self._counter("request_finished", finished)
        replays = snapshot.scheduler.decode_batch.replays_by_slots
        by_slots = [({"slots": slots}, count) for slots, count in replays.items()]
        yield self._counter("decode_batch_replays_by_slots", by_slots)
        for name in _SPEC[1:]:
            counts = getattr(snapshot.scheduler.spec_decode, f"{name}_per_pos_total")
            by_position = [({"position": str(at)}, count) for at, count in enumerate(counts)]
            yield self._counter(f"spec_decode_{name}_per_pos", by_position)

    def _histograms(self) -> Iterator[Metric]:
        histograms = self._snapshot.histograms
        name = "dgpp_time_to_first_token_seconds"
        labels = ["model_name", "prefix_cache"]
        first = HistogramMetricFamily(name, _help(name), labels=labels)
        for found in ("hit", "miss"):
            data = getattr(histograms, f"time_to_first_token_{found}")
            first.add_metric([self._model, found], data.cumulative(), data.total)
        yield first
        for name, field in _HISTOGRAMS.items():
            data = getattr(histograms, field)
            family = HistogramMetricFamily(f"dgpp_{name}", _help(name), labels=["model_name"])
            family.add_metric([self._model], data.cumulative(), data.total)
            yield family

    def _ranks(self, ranks: list[RankMetrics]) -> Iterator[Metric]:
        build = self._snapshot.build
        facts = {
            "world_size": str(build.world_size),
            "version": build.version,
            "git_sha": build.git_sha,
        }
        yield self._gauge("rank_info", [({"rank": str(r.rank), **facts}, 1) for r in ranks])
        for name in _RANK_COUNTERS:
            values: Samples = [({"rank": str(r.rank)}, getattr(r, name)) for r in ranks]
            yield self._counter(f"rank_{name}", values)
        for name, field in _RANK_GAUGES.items():
            values = [({"rank": str(r.rank)}, getattr(r, field)) for r in ranks]
            yield self._gauge(f"rank_{name}", values)
        collectives = [
            ({"rank": str(r.rank), "path": path}, count)
            for r in ranks
            for path, count in r.collectives.items()
        ]
        yield self._counter("rank_collectives", collectives)
        ticks = [({"rank": str(r.rank)}, r.ticks) for r in ranks if r.ticks is not None]
        yield self._counter("rank_ticks", ticks)

    def _gauge(self, name: str, values: Samples) -> Metric:
        return self._filled(GaugeMetricFamily, name, values)

    def _counter(self, name: str, values: Samples) -> Metric:
        return self._filled(CounterMetricFamily, name, values)

    def _filled(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        values: Samples,
    ) -> Metric:
        labels = ["model_name", *(values[0][0] if values else ())]
        family = kind(f"dgpp_{name}", _help(name), labels=labels)
        for extra, value in values:
            family.add_metric([self._model, *extra.values()], float(value))
        return family


class _RanksExposition(_Exposition):
    def collect(self) -> Iterator[Metric]:
        yield from self._ranks(self._snapshot.ranks)


def _help(name: str) -> str:
    """The name in words: names here say what they count and in which unit."""
    return name.removeprefix("dgpp_").replace("_", " ").capitalize()
