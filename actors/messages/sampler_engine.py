"""sampler → engine."""

from __future__ import annotations

import msgspec


class WantRow(msgspec.Struct, frozen=True, tag=True):
    """The candidates of row `row` of step `step` did not decide: send it whole."""

    step: int
    row: int


class Masks(msgspec.Struct, frozen=True, tag=True):
    """What may follow in `slots` at step `step`; arrays: uint32 [len(slots), ⌈vocab / 32⌉]."""

    step: int
    slots: tuple[int, ...]


FromSampler = WantRow | Masks
