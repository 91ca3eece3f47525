"""Times decode and prefill of an engine beside what must be read and multiplied."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec

from dgpp.bench.drive import Driver, ExpertCount
from dgpp.models.plan import MemoryPlan

WARM_STEPS = 3
COUNTED_STEPS = 4
LEAST_STEPS = max(WARM_STEPS, COUNTED_STEPS)
"""Steps that follow a context however few are timed."""


class DecodeFigure(msgspec.Struct, frozen=True):
    """One context and batch. `ms` is the median step of several runs, `ms_min` and `ms_max` the
    extremes; `read_bytes` the weights and cached rows a step must read; `bandwidth` (bytes per
    second) is the machine's and `of_bandwidth` the step's share of it; `experts` distinct ones per
    MoE layer (0: none)."""

    context: int
    batch: int
    ms: float
    ms_min: float
    ms_max: float
    tokens_per_second: float
    experts: float
    weight_bytes: float
    kv_bytes: float
    bandwidth: float
    of_bandwidth: float

    @property
    def read_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes


class PrefillFigure(msgspec.Struct, frozen=True):
    """One prompt. `flops_per_second` counts products with weights alone; `product` is the rate of a
    plain one of as many rows on this machine and `of_product` the share of it reached, None where
    that could not be measured."""

    tokens: int
    ms: float
    ms_min: float
    ms_max: float
    tokens_per_second: float
    flops_per_second: float
    product: float | None
    of_product: float | None


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Decode:
    """Prompts are read once, and go on for a longer context."""

    def __init__(self, driver: Driver, plan: MemoryPlan, longest: int, batch: int) -> None:
        self._driver, self._plan = driver, plan
        self._picked = [-1] * batch
        driver.open(range(batch), longest)

    def at(
        self, context: int, batch: int, *, steps: int, runs: int, bandwidth: float
    ) -> DecodeFigure:
        """`runs` times `steps` steps of the first `batch` slots with `context` tokens each."""
        driver, plan = self._driver, self._plan
        for slot in range(batch):
            driver.read(slot, context)
        tokens = [(7919 * slot + context) % plan.limits.vocab_size for slot in range(batch)]
        driver.decode(context, tokens, WARM_STEPS)
        times = [
            _seconds(lambda: driver.decode(context, tokens, steps)) / steps for _ in range(runs)
        ]
        experts = self._experts(context, tokens)
        seconds = statistics.median(times)
        weight_bytes = plan.work.read_bytes(experts)
        # Keys and values are read, state of a fixed size is read and written.
        kv_bytes = float(batch * (plan.token_bytes * (context + 1) + 2 * plan.request_bytes))
        return DecodeFigure(
            context=context,
            batch=batch,
            ms=1e3 * seconds,
            ms_min=1e3 * min(times),
            ms_max=1e3 * max(times),
            tokens_per_second=batch / seconds,
            experts=experts,
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
            bandwidth=bandwidth,
            of_bandwidth=(weight_bytes + kv_bytes) / seconds / bandwidth,
        )

    def _experts(self, context: int, tokens: list[int]) -> float:
        engine = self._driver.engine
        counted = ExpertCount(engine)
        engine.observer = counted
        try:
            self._driver.decode(context, tokens, COUNTED_STEPS)
        finally:
            engine.observer = None
        return counted.mean


def measure_prefill(
    driver: Driver, plan: MemoryPlan, tokens: int, *, runs: int, product: float | None
) -> PrefillFigure:
    """Read a prompt of `tokens` alone, `runs` times after a first one that warms up."""
    times = []
    for _ in range(runs + 1):
        driver.open([0], tokens)
        times.append(_seconds(lambda: driver.read(0, tokens)))
    seconds = statistics.median(times[1:])
    rate = 2.0 * plan.work.linear_parameters * tokens / seconds
    return PrefillFigure(
        tokens=tokens,
        ms=1e3 * seconds,
        ms_min=1e3 * min(times[1:]),
        ms_max=1e3 * max(times[1:]),
        tokens_per_second=tokens / seconds,
        flops_per_second=rate,
        product=product,
        of_product=None if product is None else rate / product,
    )
