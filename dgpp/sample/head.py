"""A row's candidates with their weights, computed only as far as somebody looks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dgpp.sample.exact import exp, exp_array

Ids = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]

# Most draws fall within the first few candidates; past them an array costs less per weight.
_SCALAR = 8


class Head:
    """The first `held` of `present` ids in canonical order, scaled by the temperature.

    `scaled` are the logits divided by T in float32, held as Python floats. `lse` is
    log Σ exp(scaled) over all present ids. `weights[i]` is exp(scaled_i − scaled_0), for as many
    i as `extend` was asked for.
    """

    __slots__ = ("held", "ids", "lse", "present", "scaled", "weights")

    def __init__(
        self, ids: Ids, logits: Logits, present: int, lse: float, temperature: float
    ) -> None:
        # A temperature near zero overflows to infinities, whose differences weigh nothing.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            self.scaled: list[float] = (logits / np.float32(temperature)).tolist()
        self.ids = ids
        self.present = present
        self.lse = lse
        self.weights = [1.0]
        self.held = len(self.scaled)

    @property
    def complete(self) -> bool:
        """Whether no present id lies beyond the list."""
        return self.held >= self.present

    def extend(self, count: int) -> None:
        """Have the first `count` weights ready; `count` is at most `held`."""
        weights, scaled = self.weights, self.scaled
        first = scaled[0]
        while len(weights) < min(count, _SCALAR):
            weights.append(exp(scaled[len(weights)] - first))
        start = len(weights)
        if start < count:
            # In growing steps: whoever walks on asks for one more each time.
            end = min(self.held, max(count, 4 * start))
            with np.errstate(invalid="ignore"):
                tail = np.array(scaled[start:end]) - first
            weights.extend(exp_array(tail).tolist())


def full_head(logits: Logits, width: int, present: int, lse: float, temperature: float) -> Head:
    """The canonical first `width` ids of a whole row, and all that tie with the last of them.

    `logits` is float32 [vocab], −inf (or NaN) where absent. A `width` of the vocabulary's size
    gives a complete head.
    """
    kept = np.flatnonzero(logits > -np.inf)
    if width >= len(logits):
        present = len(kept)
    elif width < len(kept):
        place = len(kept) - width
        kept = np.flatnonzero(logits >= np.partition(logits[kept], place)[place])
    chosen = kept[np.argsort(-logits[kept], kind="stable")]
    return Head(chosen.astype(np.int32), logits[chosen], present, lse, temperature)
