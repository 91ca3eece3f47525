"""Candidates of slices of the vocabulary to those of the whole, by one rule on every rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dgpp.sample.exact import exp_array, log


def merge_lse(parts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log Σ exp over slices, float64 [W, R] → [R]: the largest first taken out, then added in rank
    order, by arithmetic that is the same on every machine. NaN where any part is."""
    top = parts.max(axis=0)
    # Infinities and NaNs come out wrong here and are put right below.
    with np.errstate(invalid="ignore"):
        total = np.zeros_like(top)
        for weight in exp_array(parts - top):
            total += weight
        merged = top + np.array([log(value) for value in total.tolist()])
    # A row without any id, or with an infinite or undefined one, is what its largest part is.
    kept: npt.NDArray[np.float64] = np.where(np.isfinite(top), merged, top)
    return kept
