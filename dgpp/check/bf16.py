"""How near a backend with bf16 activations must come: no farther than the reference's own bf16 run.

index.json states for a fixture how far the reference implementation, run in bf16, lies from its
float32 run. That mean error over the spread of the logits, `Noise.relative`, is what bf16 costs
end to end, and the bound on everything here:

- Values: the mean error is at most `relative` times the values' standard deviation.
- A layer fed the reference's own input: the largest error is at most `relative` times the largest
  change that the layer makes, and the mean error as much of the mean change; what float16 loses in
  the stored states is allowed on top. Fed with its own input it is told and not judged.
- An expert may be chosen otherwise only where float32 scores stand closer than two of them, each
  off by `relative` (scores lie between 0 and 1). Such a row's values are not compared.
- The best token may differ only where the reference's two best logits stand closer than two of
  them, each off by the stated mean. Elsewhere it agrees at least as often as in the reference's
  bf16 run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.check.judge import max_abs
from dgpp.check.noise import Noise
from dgpp.check.report import Flip, LayerError

Array = npt.NDArray[Any]
FLOAT16_STEP = 2.0**-10
"""Relative rounding of a stored state, with some room."""


class Bf16Judge:
    """`gaps` tells for each MoE layer how far float32 holds the last expert chosen from the first
    left out, on the reference's own input; it is asked only where a choice differs."""

    rule = "bf16"

    def __init__(self, noise: Noise, gaps: Callable[[], Mapping[int, Array]] | None) -> None:
        self._noise, self._gaps = noise, gaps
        self.failures: list[str] = []
        self.flips: list[Flip] = []

    def near(self, name: str, got: Array, reference: Array, slack: Array | None = None) -> float:
        if got.shape != reference.shape:
            self.failures.append(f"{name}: shape {got.shape}, expected {reference.shape}")
            return float("inf")
        error = _error(got, reference)
        allowed = self._noise.relative * float(reference.astype(np.float64).std())
        if error.size and error.mean() > allowed:
            mean = f"mean |error| {error.mean():.3g}"
            self.failures.append(f"{name}: {mean}, bf16 explains {allowed:.3g}")
        return max_abs(got, reference)

    def state(self, name: str, got: Array, reference: Array) -> float:
        if got.shape != reference.shape:
            self.failures.append(f"{name}: shape {got.shape}, expected {reference.shape}")
            return float("inf")
        return max_abs(got, reference)

    def layer(self, index: int, got: Array, hidden: Array, *, alone: bool) -> LayerError:
        wanted = hidden[index].astype(np.float64)
        if got.shape != wanted.shape or not index or not alone:
            ok = got.shape == wanted.shape
            worst = max_abs(got, wanted) if ok else float("inf")
            return LayerError(index - 1, worst, ok)
        steady = np.ones(len(wanted), bool)
        steady[[flip.row for flip in self.flips if flip.layer == index - 1]] = False
        change = np.abs(wanted - hidden[index - 1])[steady]
        error = _error(got, wanted)[steady] - FLOAT16_STEP * np.abs(wanted[steady])
        error = np.maximum(error, 0.0)
        largest = _ratio(error.max(initial=0.0), change.max(initial=0.0))
        ratio = max(largest, _ratio(error.sum(), change.sum()))
        ok = ratio <= self._noise.relative
        if not ok:
            said = f"{ratio:.3g} of its change, bf16 explains {self._noise.relative:.3g}"
            self.failures.append(f"layer {index - 1}: error is {said}")
        return LayerError(index - 1, max_abs(got, wanted), ok, largest)

    def routed(
        self, name: str, layer: int, got: tuple[Array, Array], wanted: tuple[Array, Array]
    ) -> tuple[bool, float]:
        if got[0].shape != wanted[0].shape:
            self.failures.append(f"{name} ids of layer {layer}: another shape")
            return False, float("inf")
        differs = (got[0] != wanted[0]).any(axis=1)
        if differs.any() and self._gaps is not None:
            self._judge_flips(name, layer, np.flatnonzero(differs), self._gaps()[layer])
        same = ~differs
        return not differs.any(), max_abs(got[1][same], wanted[1][same])

    def _judge_flips(self, name: str, layer: int, rows: Array, gaps: Array) -> None:
        limit = 2.0 * self._noise.relative
        for row in rows.tolist():
            gap = float(gaps[row])
            self.flips.append(Flip(layer, row, gap, gap < limit))
            if gap >= limit:
                far = f"{gap:.3g} apart in float32, bf16 explains {limit:.3g}"
                self.failures.append(f"{name} ids of layer {layer}, row {row}: {far}")

    def picks(self, got: Array, wanted: Array, margins: Array) -> int:
        decided = margins >= 2.0 * self._noise.mean_abs
        missed = np.flatnonzero((got != wanted) & decided)
        if missed.size:
            first = int(missed[0])
            self.failures.append(
                f"greedy: token {first} is {got[first]}, not {wanted[first]}, which leads by "
                f"{margins[first]:.3g}"
            )
        return int(np.sum(got == wanted))

    def logits(self, got: Array, wanted: Array, slack: Array | None = None) -> float:
        if got.shape != wanted.shape:
            self.failures.append(f"logits: shape {got.shape}, expected {wanted.shape}")
            return float("inf")
        mean = float(_error(got, wanted).mean())
        if mean > self._noise.mean_abs:
            limit = f"the reference's bf16 run has {self._noise.mean_abs:.3g}"
            self.failures.append(f"logits: mean |error| {mean:.3g}, {limit}")
        two = np.sort(wanted, axis=1)[:, -2:]
        decided = two[:, 1] - two[:, 0] >= 2.0 * self._noise.mean_abs
        agree = (got.argmax(axis=1) == wanted.argmax(axis=1))[decided]
        if agree.size and agree.mean() < self._noise.argmax_agree:
            rate = f"{agree.mean():.3f} of {agree.size} rows that bf16 does not explain"
            self.failures.append(f"logits: the best token agrees in {rate}")
        return max_abs(got, wanted)


def _error(got: Array, reference: Array) -> npt.NDArray[np.float64]:
    difference = np.abs(got.astype(np.float64) - reference.astype(np.float64))
    return np.nan_to_num(difference, nan=np.inf)


def _ratio(part: float, whole: float) -> float:
    return float(part / max(whole, np.finfo(np.float64).tiny))
