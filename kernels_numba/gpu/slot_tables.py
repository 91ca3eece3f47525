"""Counts and biases of requests' ids, kept on the device: a step sends what has changed of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import Staging
from kernels_numba.gpu.source import PICK
from kernels_numba.picks import Adjustment, Kept

THREADS = 256
_NOBODY = (-1, 0)


class DeviceTables:
    """int32 counts and float32 biases [rows, V]. A row belongs to a slot, or, where nobody keeps
    account of what changes, to a row of the step and is sent whole every time.

    All copies stand in the order of the step's stream.
    """

    def __init__(self, kernels: Kernels, staging: Staging, rows: int, size: int) -> None:
        cupy = load_cupy()
        self._kernels, self._staging, self._size = kernels, staging, size
        self._counts = cupy.zeros((rows, size), cupy.int32)
        self._bias = cupy.zeros((rows, size), cupy.float32)
        self._held = [_NOBODY] * rows
        """Of each row: the slot's choice that it is of, and how many of its changes it has."""

    def place(self, adjustments: Sequence[Adjustment]) -> list[tuple[int, int]]:
        """Device addresses of each row's counts and bias, 0 for none, once all are up to date."""
        known = all(a.kept is not None for a in adjustments if _has_tables(a))
        changes: list[tuple[int, int]] = []
        addresses = []
        for r, adjustment in enumerate(adjustments):
            at = r
            if _has_tables(adjustment):
                kept = adjustment.kept if known else None
                at = r if kept is None else kept.slot
                changes += self._update(at, adjustment, kept)
            addresses.append(
                (
                    0 if adjustment.counts is None else self._address(self._counts, at),
                    0 if adjustment.bias is None else self._address(self._bias, at),
                )
            )
        if changes:
            self._send(changes, adjustments)
        return addresses

    def _address(self, table: object, row: int) -> int:
        return int(table.data.ptr) + 4 * self._size * row  # type: ignore[attr-defined]

    def _update(self, row: int, adjustment: Adjustment, kept: Kept | None) -> list[tuple[int, int]]:
        """(row, id) of what is still to be sent of a row that is there already; one that is not is
        sent whole."""
        opening, done = self._held[row]
        if kept is None or opening != kept.opening:
            for table, values in ((self._counts, adjustment.counts), (self._bias, adjustment.bias)):
                if values is not None:
                    self._staging.send(self._address(table, row), values)
            self._held[row] = _NOBODY if kept is None else (kept.opening, len(kept.ids))
            return []
        self._held[row] = (opening, len(kept.ids))
        new = (token - kept.first for token in islice(kept.ids, done, None))
        return [(row, token) for token in new if 0 <= token < self._size]

    def _send(self, changes: list[tuple[int, int]], adjustments: Sequence[Adjustment]) -> None:
        of = {a.kept.slot: a for a in adjustments if a.kept is not None and _has_tables(a)}
        with self._staging.lend(16 * len(changes)) as held:
            words = held.view(np.int32).reshape(-1, 4)
            for to, (row, token) in zip(words, changes, strict=True):
                to[:2] = row, token
                to[2] = _entry(of[row].counts, token)
                to[3] = _entry(of[row].bias, token)
            self._kernels.launch(
                PICK, "keep_entries", (-(-len(changes) // THREADS),), THREADS,
                (held.ctypes.data, len(changes), self._size, int(self._counts.data.ptr),
                 int(self._bias.data.ptr)),
            )  # fmt: skip


def _has_tables(adjustment: Adjustment) -> bool:
    return adjustment.counts is not None or adjustment.bias is not None


def _entry(table: npt.NDArray[np.int32] | npt.NDArray[np.float32] | None, token: int) -> np.int32:
    """The entry's 32 bits."""
    if table is None:
        return np.int32(0)
    bits: np.int32 = table[token : token + 1].view(np.int32)[0]
    return bits
