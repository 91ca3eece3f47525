"""Models, health and metrics."""

from __future__ import annotations

import json

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dgpp.serve.errors import ApiError
from dgpp.serve.health import Health, State
from dgpp.serve.histogram import LATENCY, STEP, TOKENS, Histogram
from dgpp.serve.metrics import MetricsSnapshot, PrefillRequest, RankMetrics
from dgpp.serve.models import find_model, model_list
from dgpp.serve.prometheus import prometheus_text
from dgpp.serve.served import ServedModel

SECTIONS = {
    "scheduler": "active queued terminal records record_tokens pool_blocks_total "
    "pool_blocks_in_use prefilling tokens_generated snapshot_age_ms step_age_ms prompts_prefilled "
    "prompt_tokens prompt_tokens_computed decode_steps decode_rows decode_batch spec_decode "
    "prefill_ms prefill_request_ms step_ms",
    "service": "requests_total requests_shed pending_admissions pending_cancellations "
    "requests_cancelled requests_shed_pool requests_failed engine_failed reservations_grown "
    "admission tokens_out rejects_bad tool_calls_out connections_refused",
    "prefix_cache": "enabled slots min_tokens head_cuts entries hits misses tokens_saved "
    "snapshots head_snapshots close_entries rolling_snapshots hop_snapshots evictions duplicates "
    "skipped_no_block skipped_no_slot skipped_image_bytes image_bytes blocks_pinned "
    "snapshot_bytes arena_snapshots snapshot_ms_avg arena_attaches attach_ms_avg ttft_hit_count "
    "ttft_hit_ms_avg ttft_miss_count ttft_miss_ms_avg key",
    "prefill": "requests prompt_tokens processed_tokens cached_tokens computed_tokens "
    "remaining_tokens",
    "nvme_cache": "enabled pages_total pages_used page_bytes bytes_total bytes_used entries "
    "blocks spills spilled spill_failed spill_skipped restores restored restore_failed "
    "tokens_restored blocks_shared evictions pending worker_pending bytes_written bytes_read "
    "failures spill_ms_avg restore_ms_avg",
    "collectives": "path all_reduces all_gathers barriers bytes waits waited_s",
}

NAMES = """
build_info engine_failed max_concurrent_requests queue_limit kv_pool_tokens
admission_window_tokens admission_prefill_budget_tokens admission_prefill_idle_budget_tokens
num_requests_running num_requests_waiting num_requests_prefilling pending_admissions
pending_cancellations kv_pool_blocks_total kv_pool_blocks_in_use kv_cache_usage_perc
scheduler_snapshot_age_seconds scheduler_step_age_seconds
prefill_inflight_prompt_tokens prefill_inflight_remaining_tokens
requests_total requests_shed_total requests_shed_pool_total requests_cancelled_total
requests_failed_total requests_rejected_total connections_refused_total
tool_calls_total reservations_grown_total
request_finished_total prompt_tokens_total prompt_tokens_computed_total
prompt_tokens_cached_total generation_tokens_total prompts_prefilled_total prefill_seconds_total
prefill_request_seconds_total decode_steps_total decode_rows_total decode_step_seconds_total
decode_batch_last_slots decode_batch_last_active decode_batch_last_rows_per_request
decode_batch_replays_total decode_batch_rows_total decode_batch_padded_rows_total
decode_batch_replays_by_slots_total spec_decode_depth spec_decode_num_drafts_total
spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total
spec_decode_num_draft_tokens_per_pos_total spec_decode_num_accepted_tokens_per_pos_total
prefix_cache_slots prefix_cache_entries prefix_cache_blocks_pinned prefix_cache_snapshot_bytes
prefix_cache_hits_total prefix_cache_misses_total prefix_cache_queries_total
prefix_cache_tokens_saved_total prefix_cache_snapshots_total prefix_cache_head_snapshots_total
prefix_cache_close_entries_total prefix_cache_rolling_snapshots_total
prefix_cache_hop_snapshots_total prefix_cache_evictions_total prefix_cache_duplicates_total
prefix_cache_skipped_no_block_total prefix_cache_skipped_no_slot_total
prefix_cache_skipped_image_bytes_total prefix_cache_arena_snapshots_total
prefix_cache_arena_snapshot_seconds_total prefix_cache_arena_attaches_total
prefix_cache_arena_attach_seconds_total time_to_first_token_seconds request_queue_time_seconds
nvme_cache_capacity_bytes nvme_cache_used_bytes nvme_cache_entries nvme_cache_blocks
nvme_cache_pending nvme_cache_worker_pending nvme_cache_spills_total nvme_cache_spilled_total
nvme_cache_spill_failed_total nvme_cache_spill_skipped_total nvme_cache_restores_total
nvme_cache_restored_total nvme_cache_restore_failed_total nvme_cache_tokens_restored_total
nvme_cache_blocks_shared_total nvme_cache_evictions_total nvme_cache_failures_total
nvme_cache_written_bytes_total nvme_cache_read_bytes_total nvme_cache_spill_duration_seconds
nvme_cache_restore_duration_seconds
request_prefill_time_seconds request_decode_time_seconds e2e_request_latency_seconds
request_time_per_output_token_seconds inter_token_latency_seconds decode_step_duration_seconds
decode_replay_gap_seconds request_prompt_tokens request_generation_tokens rank_info
rank_decode_steps_total rank_decode_step_seconds_total rank_prefill_seconds_total
rank_generation_tokens_total rank_num_requests_running rank_kv_pool_blocks_total
rank_kv_pool_blocks_in_use rank_collectives_total rank_collective_bytes_total
rank_collective_waits_total rank_collective_wait_seconds_total rank_snapshot_age_seconds
rank_ticks_total
"""


@pytest.fixture
def snapshot() -> MetricsSnapshot:
    found = MetricsSnapshot()
    found.scheduler.active = 3
    found.scheduler.pool_blocks_total, found.scheduler.pool_blocks_in_use = 8, 2
    found.scheduler.prompt_tokens, found.scheduler.prompt_tokens_computed = 100, 60
    found.scheduler.step_ms = 2500.0
    found.scheduler.decode_batch.replays_by_slots["2"] = 7
    found.scheduler.spec_decode.num_drafts_total = 5
    found.scheduler.spec_decode.num_draft_tokens_per_pos_total = [4, 3]
    found.prefix_cache.arena_attaches, found.prefix_cache.attach_ms_avg = 4, 0.5
    found.nvme_cache.bytes_total, found.nvme_cache.bytes_used = 4096, 1024
    found.nvme_cache.restore_failed, found.nvme_cache.bytes_read = 3, 512
    found.histograms.nvme_cache_restore.observe(0.3)
    found.finished["eos"] = 9
    found.histograms.time_to_first_token_miss.observe(0.3)
    summed = {"shm": 4, "verbs": 9}
    found.ranks = [RankMetrics(0, decode_steps=11), RankMetrics(1, ticks=12, collectives=summed)]
    return found


def test_json_has_every_key(snapshot: MetricsSnapshot) -> None:
    found = json.loads(snapshot.json())
    assert {name: " ".join(members) for name, members in found.items()} == SECTIONS
    assert found["service"]["admission"]["prefill_budget_tokens"] == -1
    assert list(found["scheduler"]["decode_batch"]["replays_by_slots"]) == [*map(str, range(1, 17))]
    snapshot.prefill.requests.append(PrefillRequest("a", 0, 9, 4, 0, 4, 5, 1.5))
    assert json.loads(snapshot.json())["prefill"]["requests"][0]["remaining_tokens"] == 5
    packed = msgspec.msgpack.encode(snapshot)
    assert msgspec.msgpack.decode(packed, type=MetricsSnapshot) == snapshot
    assert MetricsSnapshot().prefill.requests == []


def test_prometheus_has_every_name_and_the_values(snapshot: MetricsSnapshot) -> None:
    text = prometheus_text(snapshot, "org/name").decode()
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    spec = [
        f"spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    assert declared[:3] == spec
    assert sorted(declared) == sorted([*spec, *(f"dgpp_{name}" for name in NAMES.split())])
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("dgpp_"):
                assert labels.pop("model_name") == "org/name"
            samples[sample.name, *sorted(labels.items())] = sample.value
    assert samples["spec_decode_num_drafts_total",] == 5
    assert samples["dgpp_num_requests_running",] == 3
    assert samples["dgpp_kv_cache_usage_perc",] == 0.25
    assert samples["dgpp_prompt_tokens_cached_total",] == 40
    assert samples["dgpp_decode_step_seconds_total",] == 2.5
    assert samples["dgpp_prefix_cache_arena_attach_seconds_total",] == 0.002
    assert samples["dgpp_nvme_cache_capacity_bytes",] == 4096
    assert samples["dgpp_nvme_cache_used_bytes",] == 1024
    assert samples["dgpp_nvme_cache_restore_failed_total",] == 3
    assert samples["dgpp_nvme_cache_read_bytes_total",] == 512
    assert samples["dgpp_nvme_cache_restore_duration_seconds_sum",] == 0.3
    assert samples["dgpp_request_finished_total", ("reason", "eos")] == 9
    assert samples["dgpp_decode_batch_replays_by_slots_total", ("slots", "2")] == 7
    position = ("dgpp_spec_decode_num_draft_tokens_per_pos_total", ("position", "1"))
    assert samples[position] == 3
    assert samples["dgpp_rank_decode_steps_total", ("rank", "0")] == 11
    assert samples["dgpp_rank_ticks_total", ("rank", "1")] == 12
    assert samples["dgpp_rank_collectives_total", ("path", "verbs"), ("rank", "1")] == 9
    first = "dgpp_time_to_first_token_seconds"
    assert samples[f"{first}_bucket", ("le", "0.25"), ("prefix_cache", "miss")] == 0
    assert samples[f"{first}_bucket", ("le", "0.5"), ("prefix_cache", "miss")] == 1
    assert samples[f"{first}_count", ("prefix_cache", "hit")] == 0
    assert samples[f"{first}_sum", ("prefix_cache", "miss")] == 0.3


def test_histogram_counts_at_and_below_each_bound() -> None:
    found = Histogram.empty((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        found.observe(value)
    found.observe(0.0, times=2)
    assert found.cumulative() == [("1.0", 4), ("2.0", 6), ("+Inf", 7)]
    assert found.total == 14.0
    assert (LATENCY[0], LATENCY[-1], STEP[0], STEP[-1]) == (0.001, 640.0, 0.001, 10.0)
    assert (TOKENS[0], TOKENS[-1]) == (1.0, 1e6)
    assert all(list(bounds) == sorted(set(bounds)) for bounds in (LATENCY, STEP, TOKENS))


def test_health_in_each_state() -> None:
    def seen(health: Health) -> tuple[str, bool, bool]:
        found = health.object()
        assert found["model"] == "m"
        assert (found["live"], found["ready"]) == (health.live, health.ready)
        return found["status"], health.live, health.ready

    ready = Health("m", State.READY)
    assert seen(ready) == ("ok", True, True)
    assert ready.refusal() is None
    failed = Health("m", State.FAILED, "engine 0 died")
    assert seen(failed) == ("failed", False, False)
    assert failed.object()["error"] == failed.object()["reason"] == "engine 0 died"
    assert failed.refusal().code == "engine_failure"
    for state, code in ((State.STARTING, "overloaded"), (State.DRAINING, "server_shutdown")):
        health = Health("m", state)
        assert seen(health) == (str(state), True, False)
        assert (health.refusal().status, health.refusal().code) == (503, code)
        assert health.now(99.0, 9, 8) is health
    leaving = Health("m", State.LEAVING)
    assert seen(leaving) == ("leaving", True, False)
    assert leaving.refusal() is None
    assert ready.now(0.0, 7, 8) is ready
    assert ready.now(30.0, 0, 8) is ready
    stalled = ready.now(31.4, 9, 8)
    assert seen(stalled) == ("stalled", True, False)
    assert stalled.object()["reason"] == "a step has been running for 31 s"
    full = ready.now(29.0, 8, 8)
    assert seen(full) == ("degraded", True, True)
    assert full.object()["reason"] == "the queue is full: 8 requests wait"


def test_models(model: ServedModel) -> None:
    (found,) = model_list(model)["data"]
    assert found == find_model(model, "org/name")
    assert found["context"] == {
        "request_limit_tokens": 4096,
        "position_ceiling_tokens": 4096,
        "kv_pool_tokens": 8192,
        "limited_by": "position-ceiling",
    }
    small = msgspec.structs.replace(model, kv_pool_tokens=512)
    assert model_list(small)["data"][0]["context"]["limited_by"] == "kv-pool"
    with pytest.raises(ApiError, match="other"):
        find_model(model, "other")


def test_vllm_names_say_the_same_figures(snapshot: MetricsSnapshot) -> None:
    snapshot.scheduler.prefilling, snapshot.scheduler.queued = 2, 4
    snapshot.finished["cancelled"] = 6
    snapshot.histograms.time_to_first_token_hit.observe(0.02)
    plain = prometheus_text(snapshot, "m").decode()
    text = prometheus_text(snapshot, "m", "vllm").decode()
    assert "vllm:" not in plain
    assert text.startswith(plain)
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                labels = dict(sample.labels)
                assert labels.pop("model_name") == "m"
                found[sample.name.removeprefix("vllm:"), *labels.values()] = sample.value
    assert found["num_requests_running",] == 5
    assert found["num_requests_waiting",] == 4
    assert found["kv_cache_usage_perc",] == 0.25
    assert found["prefix_cache_queries_total",] == 100
    assert found["prefix_cache_hits_total",] == 40
    assert found["request_success_total", "stop"] == 9
    assert found["request_success_total", "abort"] == 6
    assert found["time_to_first_token_seconds_count",] == 2
    assert found["time_to_first_token_seconds_sum",] == pytest.approx(0.32)
    assert found["time_to_first_token_seconds_bucket", "0.02"] == 1
