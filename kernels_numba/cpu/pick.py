"""From logits to candidates: penalties, bias, mask, exact head of the order, log-sum-exp."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.cpu.scalar import bits_of_float, exp64, fma32
from kernels_numba.jit import kernel, prange

CHUNK = 256
"""Ids per leaf of the log-sum-exp's tree of sums."""
LANES = 16
GROUP = 64
"""Ids per group whose maximum bounds the candidates from below."""


@kernel()
def adjust_row(
    source: Any, out: Any, counts: Any, repetition: float, frequency: float, presence: float,
    bias: Any, biased: int,
) -> None:  # fmt: skip
    """out = penalised and biased logits, float32 [V]: repetition, frequency, presence, bias."""
    r = np.float32(repetition)
    f = np.float32(-frequency)
    p = np.float32(presence)
    for i in range(source.shape[0]):
        value = source[i]
        count = counts[i]
        if count >= 1:
            value = value / r if value > np.float32(0.0) else value * r
            value = fma32(f, np.float32(count), value)
            value = value - p
        out[i] = value
    if biased != 0:
        for i in range(source.shape[0]):
            out[i] = out[i] + bias[i]


@kernel()
def mask_row(logits: Any, mask: Any) -> int:
    """-inf where bit i of `mask` (uint32 words) is clear; the number of ids left."""
    left = 0
    for i in range(logits.shape[0]):
        if (mask[i >> 5] >> np.uint32(i & 31)) & np.uint32(1):
            left += 1
        else:
            logits[i] = np.float32(-np.inf)
    return left


@kernel(inline=True)
def order_key(value: np.float32, index: int) -> np.uint64:
    """Ascending keys are logits descending, then ids ascending."""
    bits = bits_of_float(np.float32(value + np.float32(0.0)))
    flipped = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
    rank = np.uint64(np.int64(0x7FFFFFFF) - np.int64(flipped))
    return np.uint64((rank << np.uint64(32)) | np.uint64(index))


@kernel(inline=True)
def _group_top(logits: Any, first: int, last: int, lanes: Any) -> np.float32:
    """Maximum of a group: lanes first, so that it takes a few vector instructions."""
    if last - first < GROUP:
        top = logits[first]
        for i in range(first + 1, last):
            top = max(top, logits[i])
        return np.float32(top)
    for i in range(LANES):
        low = logits[first + i]
        for part in range(1, GROUP // LANES):
            other = logits[first + part * LANES + i]
            low = other if other > low else low
        lanes[i] = low
    top = lanes[0]
    for i in range(1, LANES):
        top = lanes[i] if lanes[i] > top else top
    return np.float32(top)


@kernel(inline=True)
def _chunk_sum(
    logits: Any, first: int, last: int, temperature: float, top: float, terms: Any
) -> float:
    """Σ exp(logit / T − top) of one chunk, absent ids and padding as zero, summed by halving."""
    for i in range(last - first):
        scaled = np.float64(np.float32(logits[first + i] / np.float32(temperature)))
        terms[i] = exp64(scaled - top)
    for i in range(last - first, CHUNK):
        terms[i] = 0.0
    half = CHUNK // 2
    while half >= 1:
        for i in range(half):
            terms[i] += terms[i + half]
        half //= 2
    return np.float64(terms[0])


@kernel(parallel=True)
def scan_row(logits: Any, temperature: float, tops: Any, partials: Any) -> float:
    """Group maxima into `tops` [⌈V/GROUP⌉] and chunk sums into `partials` (a power of two long).

    Returns log Σ exp(logit / T) over ids above -inf, in float64.
    """
    size = logits.shape[0]
    groups = (size + GROUP - 1) // GROUP
    chunks = (size + CHUNK - 1) // CHUNK
    for c in prange(chunks):
        lanes = np.empty(LANES, np.float32)
        for g in range(c * CHUNK // GROUP, min((c + 1) * CHUNK // GROUP, groups)):
            tops[g] = _group_top(logits, g * GROUP, min(g * GROUP + GROUP, size), lanes)
    best = tops[0]
    for g in range(1, groups):
        best = max(best, tops[g])
    if best == np.float32(-np.inf):
        return -np.inf
    top = np.float64(np.float32(best / np.float32(temperature)))
    for c in prange(chunks):
        terms = np.empty(CHUNK, np.float64)
        partials[c] = _chunk_sum(
            logits, c * CHUNK, min(c * CHUNK + CHUNK, size), temperature, top, terms
        )
    for c in range(chunks, partials.shape[0]):
        partials[c] = 0.0
    half = partials.shape[0] // 2
    while half >= 1:
        for i in range(half):
            partials[i] += partials[i + half]
        half //= 2
    return float(top + np.log(partials[0]))


@kernel()
def top_candidates(logits: Any, tops: Any, ids: Any, values: Any) -> int:
    """The first K of the canonical order into `ids` and `values`; how many are held.

    The K-th largest group maximum bounds the K-th logit from below, so only ids at or above it
    need sorting.
    """
    size = logits.shape[0]
    wanted = ids.shape[0]
    groups = (size + GROUP - 1) // GROUP
    bound = np.float32(-np.inf)
    if groups > wanted:
        bound = np.partition(tops[:groups], groups - wanted)[groups - wanted]
    keys = np.empty(size if bound == -np.inf else min(size, wanted * GROUP), np.uint64)
    found = 0
    for g in range(groups):
        if tops[g] >= bound:
            for i in range(g * GROUP, min(g * GROUP + GROUP, size)):
                if logits[i] >= bound and logits[i] > -np.inf:
                    if found == keys.shape[0]:
                        grown = np.empty(2 * found, np.uint64)
                        grown[:found] = keys
                        keys = grown
                    keys[found] = order_key(logits[i], i)
                    found += 1
    ordered = np.sort(keys[:found])
    held = min(found, wanted)
    for j in range(held):
        index = np.int64(ordered[j] & np.uint64(0xFFFFFFFF))
        ids[j] = index
        values[j] = logits[index]
    for j in range(held, wanted):
        ids[j] = -1
        values[j] = np.float32(-np.inf)
    return int(held)


@kernel()
def pick_row(
    logits: Any, temperature: float, tops: Any, partials: Any, ids: Any, values: Any
) -> tuple[int, float]:
    """(held, log-sum-exp at `temperature`) of one row; its candidates into `ids` and `values`."""
    total = scan_row(logits, temperature, tops, partials)
    return top_candidates(logits, tops, ids, values), total
