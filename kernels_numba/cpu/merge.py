"""Candidates of a row's slices merged into the head of the whole row's canonical order."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.jit import kernel


@kernel()
def merge_rows(ids: Any, values: Any, held: Any, out_ids: Any, out_values: Any) -> Any:
    """The first K of logit descending, id ascending, out of W lists in that order for each row.

    ids int32 [W, R, K], values float32 alike, held int32 [W, R]; out_ids and out_values [R, K],
    filled up with -1 and -inf. Returns int32 [R]: how many of each are filled.
    """
    world, rows, wanted = ids.shape
    filled = np.zeros(rows, np.int32)
    at = np.empty(world, np.int64)
    for r in range(rows):
        at[:] = 0
        for j in range(wanted):
            best = -1
            for w in range(world):
                if at[w] >= held[w, r]:
                    continue
                if best >= 0:
                    value, top = values[w, r, at[w]], values[best, r, at[best]]
                    if value < top or (value == top and ids[w, r, at[w]] > ids[best, r, at[best]]):
                        continue
                best = w
            if best < 0:
                out_ids[r, j] = -1
                out_values[r, j] = -np.inf
                continue
            out_ids[r, j] = ids[best, r, at[best]]
            out_values[r, j] = values[best, r, at[best]]
            at[best] += 1
            filled[r] += 1
    return filled
