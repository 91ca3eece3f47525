"""From a row's candidates to one token, by one rule whatever the length of the list.

Order: temperature (applied in `Head`), top-k, min-p, top-p, draw. A list that does not hold every
present id decides only what the complete list would decide alike, bit for bit; where it cannot,
the answer is None and nothing has been consumed.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dgpp.sample.exact import exp, log
from dgpp.sample.head import Head
from dgpp.sample.params import SamplingParams


class Choice(NamedTuple):
    """Candidate `rank` was chosen among the first `survivors` ids of the canonical order.

    The log probability of survivor i is scaled_i − `log_norm`.
    """

    rank: int
    survivors: int
    log_norm: float


def choose(params: SamplingParams, head: Head, u: float) -> Choice | None:
    """Draw with `u` in [0, 1) from the filtered distribution; None where `head` is too short."""
    if not head.held:
        return None
    # Against the number of present ids, not of held ones: the regime must not depend on those.
    top_k = params.top_k if 0 < params.top_k < head.present else 0
    if not top_k and params.min_p <= 0.0 and params.top_p >= 1.0:
        return _draw_unfiltered(head, u)
    survivors = _survivors(params, top_k, head)
    return None if survivors is None else _draw_survivor(head, survivors, u)


def choose_greedy(head: Head) -> Choice | None:
    """The first candidate, with logprobs under the unfiltered distribution."""
    return Choice(0, head.present, head.lse) if head.held else None


def _draw_unfiltered(head: Head, u: float) -> Choice | None:
    index = _walk(head, u, inclusive=False)
    if index is None:
        if not head.complete:
            return None
        # The masses of all ids may round to a sum just below u.
        index = _last_positive(head.weights)
    return Choice(index, head.present, head.lse)


def _draw_survivor(head: Head, survivors: int, u: float) -> Choice:
    first = head.scaled[0]
    if survivors == 1:
        return Choice(0, 1, first)
    head.extend(survivors)
    quotients, total = _quotients(head, survivors)
    index = next((i for i, c in enumerate(accumulate(quotients)) if c > u), None)
    if index is None:
        index = _last_positive(quotients)
    return Choice(index, survivors, first + log(total))


def _survivors(params: SamplingParams, top_k: int, head: Head) -> int | None:
    """How many ids top-k, min-p and top-p leave, at least one; None where `head` cannot tell."""
    count = head.held
    if top_k:
        if head.held < top_k:
            return None
        count = top_k
    if params.min_p > 0.0:
        floor = head.scaled[0] + log(params.min_p)
        kept = bisect_right(head.scaled, -floor, 0, count, key=operator.neg)
        if kept == count == head.held and not top_k and not head.complete:
            return None
        count = max(kept, 1)
    if params.top_p >= 1.0:
        return count
    if not top_k and params.min_p <= 0.0:
        index = _walk(head, params.top_p, inclusive=True)
        if index is None:
            return count if head.complete else None
        return index + 1
    head.extend(count)
    quotients, _ = _quotients(head, count)
    crossing = (i for i, c in enumerate(accumulate(quotients), 1) if c >= params.top_p)
    return next(crossing, count)


def _walk(head: Head, threshold: float, *, inclusive: bool) -> int | None:
    """Where the cumulative mass under `lse` first exceeds (or meets) `threshold`; None: beyond."""
    scale = exp(head.scaled[0] - head.lse)
    weights = head.weights
    mass = 0.0
    for index in range(head.held):
        if index == len(weights):
            head.extend(index + 1)
        mass += weights[index] * scale
        if mass > threshold or (inclusive and mass == threshold):
            return index
    return None


def _quotients(head: Head, count: int) -> tuple[list[float], float]:
    """The first `count` weights over their sum, rounded to float32; and the sum."""
    weights = head.weights[:count]
    # fsum is exact, so there is no order of summation to agree on.
    total = math.fsum(weights)
    return (np.array(weights) / total).astype(np.float32).tolist(), total


def _last_positive(masses: list[float]) -> int:
    return next((i for i in range(len(masses) - 1, -1, -1) if masses[i] > 0.0), 0)
