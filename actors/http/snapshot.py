"""The statistics blocks of a rank's actors as one metrics snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from actors.boot import Boot
from actors.metrics import (
    CACHE_COUNTERS,
    COLLECTIVE_FIGURES,
    MOST_DRAFTS,
    MOST_ROWS,
    TIER_COUNTERS,
)
from actors.reading import SLOTS
from actors.statistics import HistogramValue, StatisticsBlock
from dgpp.net.paths import NAMES
from dgpp.serve.histogram import Histogram
from dgpp.serve.metrics import (
    REASONS,
    Admission,
    Build,
    CollectiveMetrics,
    DecodeBatch,
    Histograms,
    MetricsSnapshot,
    NvmeCacheMetrics,
    PrefillMetrics,
    PrefillRequest,
    PrefixCacheMetrics,
    RankMetrics,
    SchedulerMetrics,
    ServiceMetrics,
    SpecDecode,
)


class Reader:
    """One role's values, read once."""

    def __init__(self, block: StatisticsBlock) -> None:
        self._values = block.read()

    def count(self, name: str) -> int:
        value = self._values[name]
        assert not isinstance(value, HistogramValue)
        return int(value)

    def real(self, name: str) -> float:
        value = self._values[name]
        assert not isinstance(value, HistogramValue)
        return float(value)

    def milliseconds(self, name: str) -> float:
        """A counter of nanoseconds, in ms."""
        return self.count(name) / 1e6

    def histogram(self, name: str) -> Histogram:
        value = self._values[name]
        assert isinstance(value, HistogramValue)
        return Histogram(value.buckets, list(value.counts), value.total)


class Load(NamedTuple):
    """What tells whether a server should be sent more: the age of the step that runs in seconds, 0
    where none does, and the requests that wait."""

    step_s: float
    waiting: int


def load(peers: Mapping[str, StatisticsBlock], now: float) -> Load:
    """How things stand at `now`."""
    scheduler = Reader(peers["scheduler"])
    return Load(_step_age(scheduler, now), scheduler.count("queued"))


def _step_age(scheduler: Reader, now: float) -> float:
    began = scheduler.real("step_began_s")
    return max(0.0, now - began) if began else 0.0


def snapshot(
    boot: Boot,
    peers: Mapping[str, StatisticsBlock],
    now: float,
    seats: Mapping[int, str],
    *,
    failed: bool,
) -> MetricsSnapshot:
    """Everything that is counted, at `now` (monotonic seconds). `seats` names the choices that
    took each slot last."""
    scheduler, http, engine = (Reader(peers[role]) for role in ("scheduler", "http", "engine"))
    return MetricsSnapshot(
        scheduler=_scheduler(boot, peers, now),
        service=_service(boot, scheduler, http, failed=failed),
        prefix_cache=_prefix_cache(boot, scheduler, http),
        nvme_cache=_nvme_cache(boot, scheduler, engine),
        prefill=_prefill(scheduler, seats, now),
        build=_build(boot),
        collectives=_collectives(engine),
        ranks=[_rank(boot, scheduler, engine, now)] if boot.settings.world_size > 1 else [],
        finished={reason: scheduler.count(f"finished_{reason}") for reason in REASONS},
        histograms=_histograms(scheduler, http, engine),
    )


def rank_snapshot(boot: Boot, peers: Mapping[str, StatisticsBlock], now: float) -> MetricsSnapshot:
    """What a rank beyond the first counts, at `now`."""
    scheduler, engine = Reader(peers["scheduler"]), Reader(peers["engine"])
    return MetricsSnapshot(build=_build(boot), ranks=[_rank(boot, scheduler, engine, now)])


def _build(boot: Boot) -> Build:
    base, _, sha = boot.version.partition("+g")
    return Build(
        version=base,
        git_sha=sha,
        world_size=boot.settings.world_size,
        max_concurrent_requests=boot.limits.slots,
        queue_limit=boot.settings.engine.queue_limit,
        kv_pool_tokens=boot.limits.blocks * boot.limits.block_tokens,
    )


def _collectives(engine: Reader) -> CollectiveMetrics:
    paths = [path for path in NAMES if engine.count(f"collectives_{path}")]
    found = {name: engine.count(f"collective_{name}") for name in COLLECTIVE_FIGURES[:-1]}
    return CollectiveMetrics("".join(paths), **found, waited_s=engine.real("collective_waited_s"))


def _rank(boot: Boot, scheduler: Reader, engine: Reader, now: float) -> RankMetrics:
    done = _collectives(engine)
    last = scheduler.real("levels_s")
    return RankMetrics(
        rank=boot.rank,
        decode_steps=scheduler.count("decode_steps"),
        decode_step_seconds=scheduler.count("decode_step_ns") / 1e9,
        prefill_seconds=scheduler.count("prefill_step_ns") / 1e9,
        generation_tokens=scheduler.count("tokens"),
        requests_running=scheduler.count("active") + scheduler.count("prefilling"),
        kv_pool_blocks_total=boot.limits.blocks,
        kv_pool_blocks_in_use=scheduler.count("blocks_in_use"),
        collectives={
            path: count for path in NAMES if (count := engine.count(f"collectives_{path}"))
        },
        collective_bytes=done.bytes,
        collective_waits=done.waits,
        collective_wait_seconds=done.waited_s,
        snapshot_age_seconds=now - last if last else 0.0,
        ticks=scheduler.count("ticks") if boot.rank else None,
    )


def _decode_batch(engine: Reader) -> DecodeBatch:
    """A recorded step has exactly the rows it is replayed for."""
    replays = {rows: engine.count(f"replays_{rows}") for rows in range(1, MOST_ROWS + 1)}
    last = engine.count("last_rows")
    return DecodeBatch(
        last_slots=last,
        last_active=last,
        last_rows_per_request=1 if last else 0,
        replays=sum(replays.values()),
        rows=sum(rows * count for rows, count in replays.items()),
        replays_by_slots={str(rows): count for rows, count in replays.items()},
    )


def _spec_decode(sampler: Reader, depth: int) -> SpecDecode:
    positions = range(min(depth, MOST_DRAFTS))
    return SpecDecode(
        depth=depth,
        num_drafts_total=sampler.count("drafts"),
        num_draft_tokens_total=sampler.count("draft_tokens"),
        num_accepted_tokens_total=sampler.count("accepted_tokens"),
        num_draft_tokens_per_pos_total=[sampler.count(f"drafted_{at}") for at in positions],
        num_accepted_tokens_per_pos_total=[sampler.count(f"accepted_{at}") for at in positions],
    )


def _scheduler(boot: Boot, peers: Mapping[str, StatisticsBlock], now: float) -> SchedulerMetrics:
    scheduler, engine, sampler = (Reader(peers[r]) for r in ("scheduler", "engine", "sampler"))
    terminal = sum(scheduler.count(f"finished_{reason}") for reason in REASONS)
    last = scheduler.real("levels_s")
    return SchedulerMetrics(
        active=scheduler.count("active"),
        queued=scheduler.count("queued"),
        prefilling=scheduler.count("prefilling"),
        terminal=terminal,
        records=scheduler.count("submitted"),
        record_tokens=scheduler.count("tokens"),
        pool_blocks_total=boot.limits.blocks,
        pool_blocks_in_use=scheduler.count("blocks_in_use"),
        tokens_generated=scheduler.count("tokens"),
        snapshot_age_ms=(now - last) * 1e3 if last else 0.0,
        step_age_ms=_step_age(scheduler, now) * 1e3,
        prompts_prefilled=scheduler.count("prompts"),
        prompt_tokens=scheduler.count("prompt_tokens") + scheduler.count("cached_tokens"),
        prompt_tokens_computed=scheduler.count("prompt_tokens"),
        decode_steps=scheduler.count("decode_steps"),
        decode_rows=scheduler.count("decode_rows"),
        decode_batch=_decode_batch(engine),
        spec_decode=_spec_decode(sampler, boot.limits.max_drafts),
        prefill_ms=scheduler.milliseconds("prefill_step_ns"),
        prefill_request_ms=scheduler.milliseconds("prefill_request_ns"),
        step_ms=scheduler.milliseconds("decode_step_ns"),
    )


def _prefill(scheduler: Reader, seats: Mapping[int, str], now: float) -> PrefillMetrics:
    found = PrefillMetrics()
    for slot in range(SLOTS):
        prompt = scheduler.count(f"reading_prompt_{slot}")
        if not prompt:
            continue
        done = scheduler.count(f"reading_done_{slot}")
        cached = scheduler.count(f"reading_cached_{slot}")
        one = PrefillRequest(
            id=seats.get(slot, ""),
            slot=slot,
            prompt_tokens=prompt,
            processed_tokens=done,
            cached_tokens=cached,
            computed_tokens=done - cached,
            remaining_tokens=prompt - done,
            elapsed_ms=(now - scheduler.real(f"reading_since_s_{slot}")) * 1e3,
        )
        found.requests.append(one)
        found.prompt_tokens += one.prompt_tokens
        found.processed_tokens += one.processed_tokens
        found.cached_tokens += one.cached_tokens
        found.computed_tokens += one.computed_tokens
        found.remaining_tokens += one.remaining_tokens
    return found


def _service(boot: Boot, scheduler: Reader, http: Reader, *, failed: bool) -> ServiceMetrics:
    engine = boot.settings.engine
    return ServiceMetrics(
        requests_total=http.count("requests"),
        requests_shed=http.count("shed"),
        pending_admissions=http.count("at_door"),
        pending_cancellations=scheduler.count("cancelling"),
        tool_calls_out=http.count("tool_calls"),
        requests_cancelled=http.count("cancelled"),
        requests_failed=http.count("failed"),
        requests_shed_pool=scheduler.count("finished_pool_exhausted"),
        reservations_grown=scheduler.count("reservations_grown"),
        engine_failed=failed,
        admission=Admission(
            engine.admission,
            engine.admission_window,
            engine.prefill_budget_tokens,
            engine.prefill_idle_budget_tokens,
        ),
        tokens_out=scheduler.count("tokens"),
        rejects_bad=http.count("rejected"),
        connections_refused=http.count("connections_refused"),
    )


def _prefix_cache(boot: Boot, scheduler: Reader, http: Reader) -> PrefixCacheMetrics:
    engine, limits = boot.settings.engine, boot.limits
    hit = http.histogram("first_token_hit_seconds")
    miss = http.histogram("first_token_seconds")
    metrics = PrefixCacheMetrics(
        enabled=limits.snapshots > 0,
        slots=limits.snapshots,
        min_tokens=engine.prefix_min_tokens,
        head_cuts=int(engine.prefix_head_snapshots),
        entries=scheduler.count("cache_entries"),
        blocks_pinned=scheduler.count("cache_blocks"),
        snapshot_bytes=limits.snapshot_bytes,
        ttft_hit_count=sum(hit.counts),
        ttft_hit_ms_avg=_average_ms(hit),
        ttft_miss_count=sum(miss.counts),
        ttft_miss_ms_avg=_average_ms(miss),
    )
    for name in CACHE_COUNTERS:
        setattr(metrics, name.removeprefix("cache_"), scheduler.count(name))
    return metrics


def _nvme_cache(boot: Boot, scheduler: Reader, engine: Reader) -> NvmeCacheMetrics:
    limits, used = boot.limits, scheduler.count("tier_pages_used")
    spills, restores = engine.count("cold_spills"), engine.count("cold_restores")
    metrics = NvmeCacheMetrics(
        enabled=limits.cold_pages > 0,
        pages_total=limits.cold_pages,
        pages_used=used,
        page_bytes=limits.cold_page_bytes if limits.cold_pages else 0,
        bytes_total=limits.cold_pages * limits.cold_page_bytes,
        bytes_used=used * limits.cold_page_bytes,
        entries=scheduler.count("tier_entries"),
        blocks=used - scheduler.count("tier_entries") * limits.cold_blob_pages,
        pending=scheduler.count("tier_pending"),
        worker_pending=engine.count("cold_waiting"),
        bytes_written=engine.count("cold_bytes_written"),
        bytes_read=engine.count("cold_bytes_read"),
        failures=engine.count("cold_failures"),
        spill_ms_avg=engine.milliseconds("cold_spill_ns") / max(1, spills),
        restore_ms_avg=engine.milliseconds("cold_restore_ns") / max(1, restores),
    )
    for name in TIER_COUNTERS:
        setattr(metrics, name.removeprefix("tier_"), scheduler.count(name))
    return metrics


def _average_ms(seconds: Histogram) -> float:
    count = sum(seconds.counts)
    return seconds.total / count * 1e3 if count else 0.0


def _histograms(scheduler: Reader, http: Reader, engine: Reader) -> Histograms:
    return Histograms(
        time_to_first_token_hit=http.histogram("first_token_hit_seconds"),
        time_to_first_token_miss=http.histogram("first_token_seconds"),
        queue_time=scheduler.histogram("queue_seconds"),
        prefill_time=scheduler.histogram("prefill_seconds"),
        decode_time=scheduler.histogram("decode_seconds"),
        e2e_latency=http.histogram("request_seconds"),
        time_per_output_token=http.histogram("time_per_token_seconds"),
        inter_token_latency=scheduler.histogram("inter_token_seconds"),
        decode_step_duration=scheduler.histogram("step_seconds"),
        decode_replay_gap=engine.histogram("replay_gap_seconds"),
        nvme_cache_spill=engine.histogram("cold_spill_seconds"),
        nvme_cache_restore=engine.histogram("cold_restore_seconds"),
        prompt_tokens=scheduler.histogram("request_prompt_tokens"),
        generation_tokens=scheduler.histogram("request_generation_tokens"),
    )
