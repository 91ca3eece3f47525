"""The metrics under the names that dashboards for vLLM query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dgpp.serve.histogram import Histogram
from dgpp.serve.metrics import MetricsSnapshot

Value = Callable[[MetricsSnapshot], float]


def _usage(snapshot: MetricsSnapshot) -> float:
    scheduler = snapshot.scheduler
    return scheduler.pool_blocks_in_use / max(1, scheduler.pool_blocks_total)


def _looked_up(snapshot: MetricsSnapshot) -> float:
    """vLLM counts tokens here, where the names of this server count requests."""
    return float(snapshot.scheduler.prompt_tokens)


def _found(snapshot: MetricsSnapshot) -> float:
    return float(snapshot.scheduler.prompt_tokens - snapshot.scheduler.prompt_tokens_computed)


GAUGES: dict[str, Value] = {
    "num_requests_running": lambda s: s.scheduler.active + s.scheduler.prefilling,
    "num_requests_waiting": attrgetter("scheduler.queued"),
    "kv_cache_usage_perc": _usage,
}
COUNTERS: dict[str, Value] = {
    "prefix_cache_queries": _looked_up,
    "prefix_cache_hits": _found,
    "prompt_tokens": attrgetter("scheduler.prompt_tokens"),
    "generation_tokens": attrgetter("scheduler.tokens_generated"),
    "num_preemptions": attrgetter("service.requests_shed_pool"),
}
HISTOGRAMS = {
    "inter_token_latency_seconds": "inter_token_latency",
    "e2e_request_latency_seconds": "e2e_latency",
    "request_queue_time_seconds": "queue_time",
    "request_prefill_time_seconds": "prefill_time",
    "request_decode_time_seconds": "decode_time",
    "request_time_per_output_token_seconds": "time_per_output_token",
    "request_prompt_tokens": "prompt_tokens",
    "request_generation_tokens": "generation_tokens",
}
FINISHED = {
    "stop": ("eos", "stop"),
    "length": ("length", "pool_exhausted"),
    "abort": ("cancelled",),
}


class VllmNames(Collector):
    """Nothing is measured anew: each name stands for figures that the server has."""

    def __init__(self, snapshot: MetricsSnapshot, model_name: str) -> None:
        self._snapshot = snapshot
        self._model = model_name

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        for name, read in GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", name, labels=["model_name"])
            gauge.add_metric([self._model], float(read(snapshot)))
            yield gauge
        for name, read in COUNTERS.items():
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=["model_name"])
            counter.add_metric([self._model], float(read(snapshot)))
            yield counter
        success = CounterMetricFamily(
            "vllm:request_success", "request_success", labels=["model_name", "finished_reason"]
        )
        for name, reasons in FINISHED.items():
            count = sum(snapshot.finished.get(reason, 0) for reason in reasons)
            success.add_metric([self._model, name], count)
        yield success
        first = snapshot.histograms.time_to_first_token_hit
        other = snapshot.histograms.time_to_first_token_miss
        yield self._histogram("time_to_first_token_seconds", _joined(first, other))
        for name, field in HISTOGRAMS.items():
            yield self._histogram(name, getattr(snapshot.histograms, field))

    def _histogram(self, name: str, data: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", name, labels=["model_name"])
        family.add_metric([self._model], data.cumulative(), data.total)
        return family


def _joined(one: Histogram, other: Histogram) -> Histogram:
    counts = [a + b for a, b in zip(one.counts, other.counts, strict=True)]
    return Histogram(one.bounds, counts, one.total + other.total)
