"""Candidates where each rank has the logits of a slice of the vocabulary: gathered, then merged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dgpp.engine.row_selection import RowSelector
from dgpp.net.collective import Collective
from dgpp.sample.candidates import Candidates, SlotTables
from dgpp.sample.merge import merge_lse
from dgpp.sample.params import SamplingParams
from kernels_numba.backend import Logits
from kernels_numba.cpu.merge import merge_rows
from kernels_numba.picks import Draw

F32Array = npt.NDArray[np.float32]


class ShardedSelector:
    """As `RowSelector`, with the same result on every rank: that of the whole rows.

    `slices` are the ids of each rank. `merged`: the picker of `local` gives candidates of whole
    rows already. Every call is a collective of all ranks.
    """

    def __init__(
        self,
        local: RowSelector,
        collective: Collective,
        slices: Sequence[range],
        *,
        merged: bool = False,
    ) -> None:
        self._local = local
        self._merged = merged
        self._collective = collective
        self._slices = slices
        self._first = slices[collective.rank].start
        self.began_ns = self.ended_ns = 0

    def warm_up(self, logits: Logits) -> None:
        self._local.warm_up(logits)

    def launch(
        self,
        logits: Logits,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
        draws: Sequence[Draw] = (),
    ) -> None:
        """As `RowSelector.launch` with `logits` [R, own slice]. Picks are made where candidates are
        merged before them."""
        self._local.launch(logits, slots, params, tables, draws if self._merged else ())

    def collect(self) -> Candidates:
        """Candidates of the whole rows. Raises CollectiveError where ranks could not make them."""
        own = self._local.collect()
        self._collective.check()
        self.began_ns, self.ended_ns = self._local.began_ns, self._local.ended_ns
        if self._merged or not len(own.held):
            return own
        parts = self._collective.all_gather(_pack(own, self._first))
        rows, wanted = own.ids.shape
        told = _unpack(parts, rows, wanted)
        found = Candidates(
            np.empty((rows, wanted), np.int32),
            np.empty((rows, wanted), np.float32),
            np.zeros(rows, np.int32),
            told.present.sum(axis=0, dtype=np.int32),
            merge_lse(told.lse),
            own.drafts,
            own.picks,
        )
        found.held[:] = merge_rows(told.ids, told.logits, told.held, found.ids, found.logits)
        return found

    def select(
        self,
        logits: Logits,
        slots: Sequence[int],
        params: Sequence[SamplingParams],
        tables: SlotTables,
    ) -> Candidates:
        """`launch` and `collect`."""
        self.launch(logits, slots, params, tables)
        return self.collect()

    def adjusted(self, logits: Logits, rows: Sequence[int]) -> F32Array:
        """float32 [len(rows), V]: the whole rows as the last `select` saw them, bit for bit."""
        return gather_slices(self._collective, self._local.adjusted(logits, rows), self._slices)


def gather_slices(collective: Collective, own: F32Array, slices: Sequence[range]) -> F32Array:
    """float32 [R, V] from every rank's [R, its slice], bit for bit."""
    widest = max(map(len, slices))
    sent = np.zeros((len(own), widest), np.float32)
    sent[:, : own.shape[1]] = own
    parts = collective.all_gather(sent)
    kept = [part[:, : len(held)] for part, held in zip(parts, slices, strict=True)]
    whole: F32Array = np.concatenate(kept, axis=1)
    return whole


def _pack(own: Candidates, first: int) -> npt.NDArray[np.uint8]:
    """One rank's candidates as bytes, lse first, with ids of the whole vocabulary."""
    ids = np.where(own.ids >= 0, own.ids + np.int32(first), np.int32(-1))
    fields = (own.lse, own.logits, ids.astype(np.int32), own.held, own.present)
    return np.concatenate([np.ascontiguousarray(f).reshape(-1).view(np.uint8) for f in fields])


class _Parts(NamedTuple):
    """Of all ranks: ids [W, R, K], logits alike, held [W, R], present alike, lse alike."""

    lse: npt.NDArray[np.float64]
    logits: F32Array
    ids: npt.NDArray[np.int32]
    held: npt.NDArray[np.int32]
    present: npt.NDArray[np.int32]


def _unpack(parts: npt.NDArray[np.uint8], rows: int, wanted: int) -> _Parts:
    at = 0
    fields: list[Any] = []
    for kind, width in ((np.float64, 0), (np.float32, wanted), (np.int32, wanted),
                        (np.int32, 0), (np.int32, 0)):  # fmt: skip
        shape = (len(parts), rows, width) if width else (len(parts), rows)
        size = rows * max(width, 1) * np.dtype(kind).itemsize
        fields.append(np.ascontiguousarray(parts[:, at : at + size]).view(kind).reshape(shape))
        at += size
    return _Parts(*fields)
