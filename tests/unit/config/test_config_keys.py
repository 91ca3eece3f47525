"""The table of keys: complete, with the documented defaults, and consistent in itself."""

import json
from collections import Counter

import pytest

from dgpp.config.check import Reader
from dgpp.config.engine_settings import EngineSettings
from dgpp.config.flags import flag_names, flagged, off_flag
from dgpp.config.key import Kind, leaves
from dgpp.config.settings import Settings
from dgpp.errors import ConfigError

ENGINE_DEFAULTS = json.loads(
    """{
    "max_concurrency": 8, "kv_capacity": 8192, "kv_dtype": "bf16", "embed_sharding": "replicated",
    "ngram_table": "resident", "ngram_table_model": "", "dense_weights": "checkpoint",
    "fp8_head": "gemv", "mtp_expert_format": "fp8", "bf16_weights": "checkpoint",
    "draft_vocab": "", "prefill_bf16_partials": false, "prefill_fold_scales": false,
    "prefill_fp8_gemm": false, "prefill_fp8_per_tensor": false, "expert_gemm": "wide",
    "expert_gemm_prefetch": 3, "expert_tile_list": true, "expert_gemm_pair": false,
    "ngram_prestage": true, "prefill": "exact", "rope_scaling": null,
    "default_max_tokens": 256, "file_inputs": null, "queue_limit": 64, "admission_gather_ms": 3,
    "max_connections": 64, "no_eos": false, "compact_batches": false, "decode_graph": true,
    "mtp": false, "reasoning_in_content": false, "mtp_depth": 1, "dflash_model": "",
    "dflash_weights": "checkpoint", "dflash_verify_graph": true, "dflash_draft_batch": true,
    "dflash_depth": 0, "dflash_batch_rows": 0, "prefill_group": true, "l2_prefetch": true,
    "l2_prefetch_form": "load", "l2_prefetch_window_mib": 12,
    "l2_prefetch_boundary_window_mib": 20, "l2_prefetch_boundary_rate": "light",
    "l2_prefetch_layer_rate": "light", "l2_prefetch_merge": true, "graph_batch_min_live": 0,
    "mtp_schedule": false, "mtp_schedule_row_ms": 8, "mtp_schedule_base_ms": 28,
    "mtp_schedule_lambda": 0, "mtp_schedule_min_depth": 1, "mtp_schedule_adapt": true,
    "mtp_schedule_sampled_scale": 0.93, "mtp_draft": "auto", "mtp_draft_temperature": 1.0,
    "mtp_verify": "token", "sampling_candidates": 128, "prefix_cache_gib": 1.5,
    "prefix_min_tokens": 1024, "prefix_head_snapshots": true, "admission": "full",
    "admission_window": 256, "prefill_budget_tokens": -1, "prefill_idle_budget_tokens": 0,
    "model_alias": "", "bulk_pace_gbps": -1, "bulk_inflight": -1, "rendezvous_timeout_ms": 120000,
    "stats_interval_s": 10, "lookup_draft": false, "lookup_tail": 0,
    "backend": "auto", "load": "checkpoint", "script": "", "step_ms": 0,
    "placement": "processes", "collective": "auto", "tool_args": "incremental",
    "drain_timeout_s": 30, "prefix_close": true, "cluster_token_file": ""
}"""
) | {"devices": ()}


@pytest.mark.parametrize("name", ENGINE_DEFAULTS)
def test_engine_key_has_the_documented_default(name):
    assert getattr(EngineSettings(), name) == ENGINE_DEFAULTS[name]


def test_http_defaults():
    http = Settings(model="m").http
    assert (http.bind_host, http.port, http.max_body_bytes) == ("127.0.0.1", 18080, 268435456)
    assert http.sse_ping_interval == 30


@pytest.mark.parametrize("field", leaves(Settings).values(), ids=lambda field: field.path)
def test_default_passes_its_own_check(field):
    if field.required:
        return
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    read = Reader("x").value(field, value)
    assert read == field.default
    assert type(read) is type(field.default)
    assert field.key.doc


def test_flags_are_unique():
    names = Counter()
    for field in flagged():
        names.update(flag_names(field))
        if field.kind is Kind.BOOLEAN:
            names[off_flag(field)] += 1
    names.update(["--set", "--log-json", "--log-level", "--memory-plan", "--help"])
    assert [name for name, times in names.items() if times > 1] == []


def test_engine_flags_follow_the_key():
    for field in flagged():
        if field.path.startswith("engine."):
            assert flag_names(field) == ("--" + field.name.replace("_", "-"),)


RANGES = [
    ("engine.max_concurrency", [1, 16], [0, 17, -1, 1.0, "8", True, None]),
    ("engine.kv_capacity", [1, 2**40], [0, 2**40 + 1, 10**400]),
    ("engine.expert_gemm_prefetch", [0, 16], [-1, 17]),
    ("engine.default_max_tokens", [1, 2**30], [0, 2**30 + 1]),
    ("engine.queue_limit", [1, 2**30], [0, 2**30 + 1]),
    ("engine.admission_gather_ms", [0, 1000], [-1, 1001]),
    ("engine.max_connections", [1, 2**20], [0, 2**20 + 1]),
    ("engine.mtp_depth", [1, 5], [0, 6]),
    ("engine.dflash_depth", [0, 7], [-1, 8]),
    ("engine.dflash_batch_rows", [0, 4096], [-1, 4097]),
    ("engine.l2_prefetch_window_mib", [1, 64], [0, 65]),
    ("engine.l2_prefetch_boundary_window_mib", [0, 64], [-1, 65]),
    ("engine.mtp_schedule_row_ms", [0.001, 8], [0, -1, float("inf"), float("nan"), 10**400]),
    ("engine.mtp_schedule_base_ms", [0, 28.5], [-0.1]),
    ("engine.mtp_schedule_sampled_scale", [0, 1], [-0.01, 1.01]),
    ("engine.mtp_draft_temperature", [0.001, 4], [0, 4.001]),
    ("engine.sampling_candidates", [1, 256], [0, 257]),
    ("engine.prefix_cache_gib", [0, 0.5, 22], [-1, "1"]),
    ("engine.prefill_budget_tokens", [-1, 0, 2**30], [-2, 2**30 + 1]),
    ("engine.stats_interval_s", [0, 1], [-1]),
    ("engine.kv_dtype", ["bf16", "fp8", "fp4"], ["BF16", "", 1, None, ["bf16"]]),
    ("engine.bf16_weights", ["bf12", "bf12+bf16"], ["bf16"]),
    ("engine.ngram_table_model", ["", "a/b"], ["a", "a/b/c", "/b", "a/"]),
    ("engine.mtp", [True, False], [0, 1, "true", None]),
    ("engine.model_alias", ["", "näme"], ["a\nb", "\x00", "\ud800", 3]),
    (
        "engine.default_chat_template_kwargs",
        [{}, {"enable_thinking": False}, {"reasoning_effort": "low", "clear_thinking": True}],
        [[], "x", None],
    ),
    ("http.bind_host", ["0.0.0.0", "10.1.2.3"], ["::1", "localhost", "1.2.3", "", "1.2.3.256"]),
    ("http.port", [1, 65535], [0, 65536]),
    ("http.max_body_bytes", [1, 2**63 - 1], [0, 2**63]),
    ("http.sse_ping_interval", [-1, 1, 2**31 - 1], [0, -2, 2**31]),
    ("ports.metrics", [0, 65535], [-1, 65536]),
    ("paths.stage_dir", ["/tmp/x", "~/a/b"], ["x", "/a b", "/a/../b", "/a;b", "~x", "/"]),
    ("nodes", [["a", "10.0.0.1"]], ["a", ["-a"], [1], ["a b"]]),
    ("sampling.temperature", [0, 2, None], [-0.1, 2.1, "0"]),
]


@pytest.mark.parametrize(("path", "good", "bad"), RANGES, ids=[r[0] for r in RANGES])
def test_range(path, good, bad):
    field = leaves(Settings)[path]
    reader = Reader("cluster config f")
    for value in good:
        reader.value(field, value)
    for value in bad:
        with pytest.raises(ConfigError, match=r"^cluster config f: " + path + ": expected "):
            reader.value(field, value)
