"""What is near enough: the float32 rule, and what every rule decides."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dgpp.check.expected import Tolerance, Tolerances
from dgpp.check.report import Flip, LayerError

Array = npt.NDArray[Any]


def max_abs(got: Array, reference: Array) -> float:
    """Largest |difference|; NaN counts as infinite."""
    difference = np.abs(got.astype(np.float64) - reference.astype(np.float64))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


class Judge(Protocol):
    """Compares what a backend gave with the reference and keeps what is not near enough.

    `name` in the arguments is how a failure speaks of the values.
    """

    rule: str
    failures: list[str]
    flips: list[Flip]

    def near(self, name: str, got: Array, reference: Array, slack: Array | None = None) -> float:
        """Float values; the largest |difference|. `slack` [rows] is what each may be off besides,
        where float32 is held to tolerances."""

    def state(self, name: str, got: Array, reference: Array) -> float:
        """A residual in float32 that errors of all layers before it are in; the largest
        |difference|."""

    def layer(self, index: int, got: Array, hidden: Array, *, alone: bool) -> LayerError:
        """State `index` of hidden [L + 1, T, H], that after layer index − 1; `alone`: the layer
        was fed the reference's own input, so that errors did not add up."""

    def routed(
        self, name: str, layer: int, got: tuple[Array, Array], wanted: tuple[Array, Array]
    ) -> tuple[bool, float]:
        """(ids, weights) [T, top] of a layer: whether the ids are equal, the weights' largest
        |difference| where they are."""

    def picks(self, got: Array, wanted: Array, margins: Array) -> int:
        """Greedy tokens [n] and the distance of the reference's two best; how many are equal."""

    def logits(self, got: Array, wanted: Array, slack: Array | None = None) -> float:
        """Logits [T, V] of the prompt; the largest |difference|."""


class Float32Judge:
    """Stated tolerances for values; choices and tokens are identical."""

    rule = "float32"

    def __init__(self, tolerances: Tolerances) -> None:
        self._tolerances = tolerances
        self.failures: list[str] = []
        self.flips: list[Flip] = []

    def _near(
        self,
        name: str,
        got: Array,
        reference: Array,
        tolerance: Tolerance,
        slack: Array | None = None,
    ) -> float:
        if got.shape != reference.shape:
            self.failures.append(f"{name}: shape {got.shape}, expected {reference.shape}")
            return float("inf")
        if tolerance.excess(got, reference, slack) > 1.0:
            self.failures.append(f"{name}: off by up to {max_abs(got, reference):.3g}")
        return max_abs(got, reference)

    def near(self, name: str, got: Array, reference: Array, slack: Array | None = None) -> float:
        return self._near(name, got, reference, self._tolerances.logits, slack)

    def state(self, name: str, got: Array, reference: Array) -> float:
        return self.near(name, got, reference)

    def layer(self, index: int, got: Array, hidden: Array, *, alone: bool) -> LayerError:
        before = len(self.failures)
        name = f"hidden after layer {index - 1}"
        worst = self._near(name, got, hidden[index], self._tolerances.hidden)
        return LayerError(index - 1, worst, len(self.failures) == before)

    def routed(
        self, name: str, layer: int, got: tuple[Array, Array], wanted: tuple[Array, Array]
    ) -> tuple[bool, float]:
        equal = got[0].shape == wanted[0].shape and bool(np.array_equal(got[0], wanted[0]))
        if not equal:
            self.failures.append(f"{name} ids of layer {layer}: not identical")
        return equal, self.near(f"{name} weights of layer {layer}", got[1], wanted[1])

    def picks(self, got: Array, wanted: Array, margins: Array) -> int:
        matched = int(np.sum(got == wanted))
        if matched != len(wanted):
            self.failures.append(f"greedy: {matched} of {len(wanted)} tokens equal")
        return matched

    def logits(self, got: Array, wanted: Array, slack: Array | None = None) -> float:
        return self.near("logits", got, wanted, slack)
