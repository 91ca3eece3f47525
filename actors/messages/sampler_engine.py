"""sampler → engine."""

from __future__ import annotations

import msgspec


class WantRow(msgspec.Struct, frozen=True):
    """The candidates of row `row` of step `step` did not decide: send it whole."""

    step: int
    row: int
