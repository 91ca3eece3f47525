"""Paged attention: decode rows split over their spans, prefill rows share them; equal bits.

On Hopper, prefill rows have a kernel of their own (attend_wide.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from kernels_numba.backend import Attention, Rows
from kernels_numba.gpu.attend_wide import AttendWide
from kernels_numba.gpu.device import Device, load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor
from kernels_numba.gpu.plane import SPAN, TILE_HEADS, CudaPlane, block_bytes, partial_floats
from kernels_numba.gpu.source import SHARED_DIM

SPLIT_THREADS = 128
SHARED_ROWS = 8
SHARED_THREADS = 256
FEW = 64
WARP = 32
NEW_BLOCKS = 4
"""Most blocks of attend_new that share a processor: its registers have room for as many."""
PARTIAL_BYTES = 64 << 20
"""Scratch for partial results; rows that need more are done in turns."""

HeadShape: TypeAlias = "tuple[int, int, int, float]"
"""Query heads of a head of keys, heads of keys, values of a head, the scores' scale."""


class Attend:
    """Holds the partial results of spans."""

    def __init__(self, kernels: Kernels, wide: AttendWide | None, device: Device) -> None:
        self._kernels, self._wide, self._device = kernels, wide, device
        self._partials = load_cupy().zeros(0, np.float32)

    def run(
        self,
        rows: Rows,
        queries: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        group = attention.heads // attention.kv_heads
        shape = (group, attention.kv_heads, attention.head_dim, attention.scale)
        many = rows.count > FEW
        if many and self._wide is not None and self._wide.takes(attention, plane):
            done = self._wide.run(rows, queries, attention, plane, out)
            self._split(rows, done, queries, shape, plane, out)
        elif many and plane.padded <= SHARED_DIM:
            self._shared(rows, queries, shape, plane, out)
        else:
            self._split(rows, 0, queries, shape, plane, out)

    def _shared(
        self,
        rows: Rows,
        queries: CudaTensor,
        shape: HeadShape,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        grid = (-(-rows.count // SHARED_ROWS), _tiles(shape))
        self._kernels.launch(
            plane.shared_unit, "attend_shared", grid, SHARED_THREADS,
            (queries.pointer, queries.stride, *rows.handle.metadata, rows.count, *shape,
             *plane.addresses, plane.block_tokens, out.pointer, out.stride),
            plane.span_bytes,
        )  # fmt: skip

    @staticmethod
    def takes_new(rows: Rows, attention: Attention) -> bool:
        """Whether `run_new` serves the step: few rows, each of a slot of its own, and heads of
        which a multiple of eight values turn."""
        few = rows.count <= FEW and bool(rows.handle.apart)
        return few and attention.angles.width % 8 == 0

    def run_new(
        self,
        rows: Rows,
        qkv: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        """Rotary, cache write and attention of `takes_new` rows."""
        group = attention.heads // attention.kv_heads
        shape = (group, attention.kv_heads, attention.head_dim, attention.scale)
        more = (*turning(attention), *plane.addresses, plane.block_tokens)
        room = min(NEW_BLOCKS, self._device.shared // block_bytes(plane.padded))
        room *= self._device.processors

        def split(first: int, grid: tuple[int, ...], partials: int) -> None:
            spans, tiles, taken = grid
            grid = (spans_at_once(spans, tiles * taken, room), tiles, taken)
            self._kernels.launch(
                plane.unit, "attend_new", grid, SPLIT_THREADS,
                (*qkv.target, *rows.handle.metadata, first, *shape, *more, partials, spans),
                plane.span_bytes,
                early=True,
            )  # fmt: skip

        self._in_turns(rows, 0, shape, plane, split, out)

    def _split(
        self,
        rows: Rows,
        start: int,
        queries: CudaTensor,
        shape: HeadShape,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        """Rows from `start` on, whose queries are there and whose keys are in the cache."""

        def split(first: int, grid: tuple[int, ...], partials: int) -> None:
            self._kernels.launch(
                plane.unit, "attend_split", grid, SPLIT_THREADS,
                (queries.pointer, queries.stride, *rows.handle.metadata, first, rows.count, *shape,
                 *plane.addresses, plane.block_tokens, partials, grid[0]),
                plane.span_bytes,
                early=True,
            )  # fmt: skip

        self._in_turns(rows, start, shape, plane, split, out)

    def _in_turns(
        self,
        rows: Rows,
        start: int,
        shape: HeadShape,
        plane: CudaPlane,
        split: Callable[[int, tuple[int, ...], int], None],
        out: CudaTensor,
    ) -> None:
        """Spans of as many rows as have room, then their merge, and so on."""
        group, kv_heads = shape[:2]
        each = partial_floats(group * kv_heads, kv_heads, plane.padded)
        longest = -(-rows.tables.shape[1] * plane.block_tokens // SPAN)
        self._make_room(max(PARTIAL_BYTES // 4, longest * each))
        spans = -(-rows.handle.reach // SPAN)
        turn = max(1, self._partials.size // (spans * each))
        partials = int(self._partials.data.ptr)
        for first in range(start, rows.count, turn):
            taken = min(turn, rows.count - first)
            split(first, (spans, _tiles(shape), taken), partials)
            merged = (group * kv_heads, taken, plane.padded // WARP)
            self._kernels.launch(
                plane.unit, "attend_merge", merged, WARP,
                (partials, spans, rows.handle.positions, first, *shape, out.pointer, out.stride),
                early=True,
            )  # fmt: skip

    def _make_room(self, floats: int) -> None:
        if self._partials.size < floats:
            self._partials = load_cupy().zeros(floats, np.float32)


@cache
def spans_at_once(spans: int, others: int, room: int) -> int:
    """Into how many blocks to deal the `spans` of each of `others`, where `room` blocks run at
    once: the fewest turns of blocks, each of whose spans costs one, and its start one more."""

    def cost(dealt: int) -> tuple[int, int]:
        return -(-dealt * others // room) * (1 - (-spans // dealt)), -dealt

    return min(range(1, spans + 1), key=cost)


def _tiles(shape: HeadShape) -> int:
    """Blocks of sixteen heads or fewer that share keys."""
    return shape[1] * -(-shape[0] // TILE_HEADS)


def turning(attention: Attention) -> tuple[int | float, ...]:
    """How kernels are told of the norms and the rotation of heads."""
    q, k = attention.q_norm, attention.k_norm
    return (
        0 if q is None else q.weight.pointer,
        0 if k is None else k.weight.pointer,
        0.0 if q is None else q.eps,
        0.0 if k is None else k.eps,
        attention.angles.pointer,
        attention.angles.width // 2,
    )
