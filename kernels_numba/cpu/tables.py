"""The CPU backend's tables and its operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.backend import Rows
from kernels_numba.cpu import table as kernels
from kernels_numba.cpu.dot import row_address
from kernels_numba.cpu.memory import Block, allocate, padded
from kernels_numba.cpu.row_handle import RowHandle
from kernels_numba.cpu.scratch import Scratch
from kernels_numba.cpu.store import CpuStore
from kernels_numba.tables import I64Array, NgramHash, Ngrams
from kernels_numba.weights import LAYOUTS, Form, Part, dummy_part

DUMMY_ROWS = 1 << 20
"""Random rows that are made at a time."""


class CpuTable:
    """Rows of several parts: copied into huge pages, or where they lie.

    A part whose scales are one value broadcast keeps that one.
    """

    def __init__(self, parts: Sequence[Part], *, mapped: bool) -> None:
        form, layout = parts[0].form, LAYOUTS[parts[0].form]
        if layout.indexed or layout.factor:
            message = f"{form.name}: a row's values need more than its own codes and scales"
            raise ValueError(message)
        self.columns = parts[0].columns
        if any(part.form is not form or part.columns != self.columns for part in parts):
            message = "parts of one table differ in form or columns"
            raise ValueError(message)
        self.depth = padded(self.columns)
        self.code_bytes = layout.code_bytes(self.columns)
        self.widen = row_address(form)
        self._held = [self._place(part, mapped=mapped) for part in parts]
        self._places = np.array([place for place, _ in self._held], np.int64)
        counts = [part.rows for part in parts]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.rows = int(self._starts[-1])
        self.arguments = (
            int(self._starts.ctypes.data),
            len(counts),
            int(self._places.ctypes.data),
            self.code_bytes,
            self.columns,
            self.depth,
        )

    @staticmethod
    def _place(part: Part, *, mapped: bool) -> tuple[list[int], tuple[npt.NDArray[Any], ...]]:
        """Addresses and strides of a part's codes and scales, and the arrays that hold them."""
        codes = part.data
        if not mapped:
            codes = allocate(codes.shape, codes.dtype)
            codes[...] = part.data
        place = [int(codes.ctypes.data), int(codes.strides[0])]
        if part.scale is None:
            return [*place, 0, 0], (codes,)
        scale = part.scale
        if scale.strides[0] and not mapped:
            scale = scale.copy()
        return [*place, int(scale.ctypes.data), int(scale.strides[0])], (codes, scale)


class CpuTables:
    """Implements `kernels_numba.tables.TableBackend`."""

    capacity: int
    _scratch: Scratch

    def table(self, parts: Sequence[Part], *, mapped: bool) -> CpuTable:
        return CpuTable(parts, mapped=mapped)

    def dummy_table(
        self, form: Form, rows: int, columns: int, seed: int, *, mapped: bool
    ) -> CpuTable:
        parts = []
        for first in range(0, rows, DUMMY_ROWS):
            count = min(DUMMY_ROWS, rows - first)
            part = dummy_part(form, 1 if mapped else count, columns, seed + first)
            if part.scale is not None:
                shape = (count, part.scale.shape[1])
                part = replace(part, scale=np.broadcast_to(part.scale[:1], shape))
            if mapped:
                codes = allocate((count, part.data.shape[1]), part.data.dtype)
                part = replace(part, data=codes)
            parts.append(part)
        return CpuTable(parts, mapped=True)

    def ngrams(self, how: NgramHash) -> Ngrams:
        found = Ngrams(self.capacity, how)
        held: list[npt.NDArray[Any]] = [
            np.array(values, np.int64) for values in (how.multipliers, how.primes, how.offsets)
        ]
        if how.classes is not None:
            held.append(np.ascontiguousarray(how.classes, np.int32))
        multipliers, primes, offsets = (int(array.ctypes.data) for array in held[:3])
        classes = (0, 0) if how.classes is None else (int(held[3].ctypes.data), held[3].size)
        orders, heads = len(how.multipliers), len(how.primes)
        hashing = (multipliers, orders, primes, offsets, heads, how.pad, how.reset, *classes)
        found.handle = (hashing, int(found.ids.ctypes.data), held)
        return found

    def find_ngrams(self, rows: Rows, ngrams: Ngrams, ring: CpuStore) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        hashing: tuple[int, int, int, int, int, int, int, int, int]
        hashing, ids, _ = ngrams.handle
        kernels.find_ngrams(
            handle.tokens, positions, slots, handle.starts_at, rows.count, *hashing,
            ring.address, *ring.lines, ids,
        )  # fmt: skip

    def read_ngrams(self, ngrams: Ngrams, count: int) -> I64Array:
        return ngrams.ids[:count].copy()

    def look_up(
        self, rows: Rows, ngrams: Ngrams, table: CpuTable, out: Block, *, first: int = 0
    ) -> None:
        heads = ngrams.ids.shape[1]
        scratch = self._scratch.floats(2 * table.depth)
        kernels.look_up(
            table.widen, ngrams.handle[1], rows.count, heads, first, *table.arguments, out.address,
            out.stride, scratch.address, scratch.stride,
        )  # fmt: skip
