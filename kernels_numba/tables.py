"""Rows of large tables, found by hashes of the last tokens: what of it a backend computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels_numba.backend import Rows, Tensor
from kernels_numba.weights import Form, Part

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NgramHash:
    """How a token and those before it name rows of a table.

    mix_n = y_0 · m_0 xor … xor y_{n−1} · m_{n−1} in 64 bits, y_s being the token s back; a head of
    the n-grams takes row mix_n mod its prime, in a part of the table that is its own.

    multipliers  m, one per token of the longest n-gram; products stay below 2^63
    primes       rows of each head's part, heads of 2-grams first, as many for every length
    pad          y of what lies before the prompt or at and before the last token `reset`, if any
    classes      int32 [vocab]: what a token counts as; None: itself
    """

    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    pad: int
    reset: int = -1
    classes: npt.NDArray[np.int32] | None = None

    @property
    def history(self) -> int:
        """Tokens before its own that a row reads."""
        return len(self.multipliers) - 1

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each head's part, then the number of all."""
        return tuple(accumulate(self.primes, initial=0))


class Ngrams:
    """The table rows that each row of a step names: ids int64 [capacity, heads]."""

    handle: Any = None

    def __init__(self, capacity: int, how: NgramHash) -> None:
        self.how = how
        self.ids: I64Array = np.zeros((capacity, len(how.primes)), np.int64)


class TableBackend(Protocol):
    """Operations of layers that look rows up."""

    def table(self, parts: Sequence[Part], *, mapped: bool) -> Any:
        """A table of the rows of `parts` in order, in a form whose rows stand for themselves.

        `mapped`: the parts stay where they lie, which may be a file, and are read there.
        """

    def dummy_table(self, form: Form, rows: int, columns: int, seed: int, *, mapped: bool) -> Any:
        """Seeded random rows; zeros, which take no memory, where they would be `mapped`."""

    def ngrams(self, how: NgramHash) -> Ngrams:
        """Room for the table rows of a step."""

    def find_ngrams(self, rows: Rows, ngrams: Ngrams, ring: Any) -> None:
        """ngrams.ids[r] = the table rows of r's token and those before it; of what is not in this
        step `ring` (rows of one value) holds the tokens, and keeps these for the next."""

    def read_ngrams(self, ngrams: Ngrams, count: int) -> I64Array:
        """The first `count` rows' ids on the host (a copy)."""

    def look_up(
        self, rows: Rows, ngrams: Ngrams, table: Any, out: Tensor, *, first: int = 0
    ) -> None:
        """out[r] = rows ids[r, h] − first of the table side by side, 0 where it has no such row."""
