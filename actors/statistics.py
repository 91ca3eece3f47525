"""Counters, gauges and histograms of one actor in a shared page, one writer, any readers.

Every value is one aligned 8-byte word, so a reader never sees half a number. Words are not read
together: a histogram may be one observation ahead of its sum, which no consumer of metrics minds.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping
from typing import Literal

import msgspec

WORD_BYTES = 8


class Metric(msgspec.Struct, frozen=True):
    """One named value. `buckets` are a histogram's ascending upper bounds (+Inf is implied)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    buckets: tuple[float, ...] = ()
    help: str = ""

    @property
    def words(self) -> int:
        """A histogram has a u64 count per bucket and the overflow, then the f64 sum."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


class HistogramValue(msgspec.Struct, frozen=True):
    """`counts[i]` observations fell at or below `buckets[i]` and above the bound before;
    the last count is of those above every bound. `total` is the sum of all observed values."""

    buckets: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Value = int | float | HistogramValue


class Counter:
    """A u64 that only grows."""

    __slots__ = ("_index", "_words")

    def __init__(self, words: memoryview, index: int) -> None:
        self._words = words
        self._index = index

    def add(self, amount: int = 1) -> None:
        self._words[self._index] += amount


class Gauge:
    """An f64 that is set."""

    __slots__ = ("_floats", "_index")

    def __init__(self, floats: memoryview[float], index: int) -> None:
        self._floats = floats
        self._index = index

    def set(self, value: float) -> None:
        self._floats[self._index] = value


class Histogram:
    """Counts of observations in fixed buckets, and their sum."""

    __slots__ = ("_buckets", "_floats", "_index", "_words")

    def __init__(
        self, words: memoryview, floats: memoryview[float], index: int, buckets: tuple[float, ...]
    ) -> None:
        self._words = words
        self._floats = floats
        self._index = index
        self._buckets = buckets

    def observe(self, value: float) -> None:
        bucket = bisect.bisect_left(self._buckets, value)
        self._words[self._index + bucket] += 1
        self._floats[self._index + len(self._buckets) + 1] += value


class StatisticsBlock:
    """The writer's and the readers' view of one block; `memory` holds `block_bytes(metrics)`."""

    def __init__(self, memory: memoryview, metrics: tuple[Metric, ...]) -> None:
        self.metrics = metrics
        self._words = memory.cast("B").cast("Q")
        self._floats = memory.cast("B").cast("d")
        self._places, _ = _layout(metrics)

    def counter(self, name: str) -> Counter:
        return Counter(self._words, self._place(name, "counter")[1])

    def gauge(self, name: str) -> Gauge:
        return Gauge(self._floats, self._place(name, "gauge")[1])

    def histogram(self, name: str) -> Histogram:
        metric, index = self._place(name, "histogram")
        return Histogram(self._words, self._floats, index, metric.buckets)

    def read(self) -> dict[str, Value]:
        """Every value by its metric's name."""
        return {name: self._read(*place) for name, place in self._places.items()}

    def _place(self, name: str, kind: str) -> tuple[Metric, int]:
        metric, index = self._places[name]
        if metric.kind != kind:
            raise KeyError(f"metric {name} is a {metric.kind}, not a {kind}")
        return metric, index

    def _read(self, metric: Metric, index: int) -> Value:
        match metric.kind:
            case "counter":
                return int(self._words[index])
            case "gauge":
                return float(self._floats[index])
            case "histogram":
                end = index + len(metric.buckets) + 1
                counts = tuple(self._words[index:end])
                return HistogramValue(metric.buckets, counts, self._floats[end])


def block_bytes(metrics: tuple[Metric, ...]) -> int:
    """Size of a block's memory in bytes, never zero."""
    return WORD_BYTES * max(1, _layout(metrics)[1])


@functools.cache
def _layout(metrics: tuple[Metric, ...]) -> tuple[Mapping[str, tuple[Metric, int]], int]:
    """Each metric by its name with its first word, and how many words there are in all."""
    places: dict[str, tuple[Metric, int]] = {}
    index = 0
    for metric in metrics:
        places[metric.name] = (metric, index)
        index += metric.words
    return places, index
