"""What the reference's own bf16 run costs, as index.json states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class Noise(msgspec.Struct, frozen=True):
    """mean |error| of the bf16 run's logits, the share of rows whose best token it keeps, and the
    standard deviation of the float32 logits."""

    mean_abs: float
    argmax_agree: float
    logit_std: float

    @property
    def relative(self) -> float:
        return self.mean_abs / self.logit_std


class _Run(msgspec.Struct):
    mean_abs: float
    argmax_agree: float


class _Stated(msgspec.Struct):
    """Two ways of stating it, by the fixture's family."""

    hf_bf16_vs_fp32: _Run | None = None
    logit_std: float = 0.0
    bf16_run_rel_err: float | None = None
    bf16_run_argmax_equal: float = 1.0
    logits_std: float = 0.0


def stated_noise(entry: Mapping[str, Any]) -> Noise | None:
    """Of an entry of index.json; None where it says nothing of a bf16 run. Raises
    msgspec.ValidationError."""
    found = msgspec.convert(entry, _Stated)
    run = found.hf_bf16_vs_fp32
    if run is not None and found.logit_std > 0:
        return Noise(run.mean_abs, run.argmax_agree, found.logit_std)
    if found.bf16_run_rel_err is not None and found.logits_std > 0:
        mean = found.bf16_run_rel_err * found.logits_std
        return Noise(mean, found.bf16_run_argmax_equal, found.logits_std)
    return None
