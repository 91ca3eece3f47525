"""What is done to rows of logits, and the candidates and picks that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = Any
"""float32 [rows, V], where the backend computes."""

F32Array: TypeAlias = npt.NDArray[np.float32]
F64Array: TypeAlias = npt.NDArray[np.float64]
I32Array: TypeAlias = npt.NDArray[np.int32]
U32Array: TypeAlias = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Draw:
    """How the backend itself draws a row's token, to be fed to the next row of `slot`.

    `u` in [0, 1) is the row's random number, `log_min_p` the logarithm of min-p (-inf: off). The
    order is temperature, top-k, min-p, top-p, draw; `greedy` takes the first candidate.
    """

    slot: int
    u: float
    top_k: int
    log_min_p: float
    top_p: float
    greedy: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Whose counts and bias a row has, for a backend that keeps them: those of the choice number
    `opening` that holds `slot`. `ids` are those whose entries have changed since it took the slot,
    oldest first; a row's ids begin at `first`."""

    slot: int
    opening: int
    ids: Sequence[int]
    first: int = 0


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What is done to one row of logits before its candidates are picked, in this order.

    counts  int32 [V]          ids that occurred: penalties apply; None for no penalties
    bias    float32 [V]        added; None for none
    mask    uint32 [⌈V/32⌉]    ids whose bit is clear become -inf; None for none

    `draw` says how the row's token is drawn from the candidates, None where it is not. `kept` says
    what has changed of counts and bias, None where nobody knows.
    """

    temperature: float
    counts: I32Array | None = None
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: F32Array | None = None
    mask: U32Array | None = None
    draw: Draw | None = None
    kept: Kept | None = None

    @property
    def changes(self) -> bool:
        return self.counts is not None or self.bias is not None or self.mask is not None


@dataclass(frozen=True, slots=True)
class Picked:
    """Candidates of R rows, on the host.

    ids      int32 [R, K]    logit descending, then id ascending; -1 beyond `held`
    values   float32 [R, K]  adjusted logits; -inf beyond `held`
    held     int32 [R]       how many of K are filled
    present  int32 [R]       ids that the mask left
    lse      float64 [R]     log Σ exp(logit / T) over ids above -inf
    picks    int32 [R]       the id drawn; -1 where none was to be or the candidates do not decide

    `began_ns` and `ended_ns` are the device's own times of the step, 0 where it has none.
    """

    ids: I32Array
    values: F32Array
    held: I32Array
    present: I32Array
    lse: F64Array
    picks: I32Array
    began_ns: int = 0
    ended_ns: int = 0


class Picker(Protocol):
    """Adjusts rows of logits and picks the exact head of their order.

    One selection at a time: what a launch found stands until the next one.
    """

    def warm_up(self, logits: Logits) -> None:
        """Compile every kernel and touch all scratch."""

    def launch(self, logits: Logits, rows: Sequence[Adjustment]) -> None:
        """Begin to select candidates of the first rows of `logits`; tables are read at once."""

    def collect(self) -> Picked:
        """Wait for all that was enqueued up to the last launch; the candidates that it found.
        May be called from another thread."""

    def adjusted(self, logits: Logits, rows: Sequence[int]) -> F32Array:
        """Host float32 [len(rows), V]: rows as the last launch saw them. As `collect`."""
