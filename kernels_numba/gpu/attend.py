"""Paged attention: decode rows split over their spans, prefill rows share them; equal bits.

On Hopper, prefill rows have a kernel of their own (attend_wide.py).
"""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import Attention, Rows
from kernels_numba.gpu.attend_wide import AttendWide
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor
from kernels_numba.gpu.plane import SPAN, TILE_HEADS, CudaPlane, partial_floats

SPLIT_THREADS = 128
SHARED_ROWS = 8
SHARED_THREADS = 256
SHARED_DIM = 128
"""Widest padded head whose values one warp keeps in registers."""
FEW = 64
PARTIAL_BYTES = 64 << 20
"""Scratch for partial results; rows that need more are done in turns."""


class Attend:
    """Holds the partial results of spans."""

    def __init__(self, kernels: Kernels, wide: AttendWide | None) -> None:
        self._kernels, self._wide = kernels, wide
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
        shape: tuple[int, int, int, float],
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        group, kv_heads = shape[:2]
        grid = (-(-rows.count // SHARED_ROWS), kv_heads * -(-group // TILE_HEADS))
        self._kernels.launch(
            plane.unit, "attend_shared", grid, SHARED_THREADS,
            (queries.pointer, queries.stride, *rows.handle.metadata, rows.count, *shape,
             *plane.addresses, plane.block_tokens, out.pointer, out.stride),
            plane.span_bytes,
        )  # fmt: skip

    def _split(
        self,
        rows: Rows,
        start: int,
        queries: CudaTensor,
        shape: tuple[int, int, int, float],
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        group, kv_heads, dim, scale = shape
        each = partial_floats(group * kv_heads, kv_heads, plane.padded)
        longest = -(-rows.tables.shape[1] * plane.block_tokens // SPAN)
        self._make_room(max(PARTIAL_BYTES // 4, longest * each))
        spans = -(-rows.handle.reach // SPAN)
        turn = max(1, self._partials.size // (spans * each))
        partials = int(self._partials.data.ptr)
        tiles = kv_heads * -(-group // TILE_HEADS)
        for first in range(start, rows.count, turn):
            taken = min(turn, rows.count - first)
            self._kernels.launch(
                plane.unit, "attend_split", (spans, tiles, taken), SPLIT_THREADS,
                (queries.pointer, queries.stride, *rows.handle.metadata, first, *shape,
                 *plane.addresses, plane.block_tokens, partials),
                plane.span_bytes,
                early=True,
            )  # fmt: skip
            self._kernels.launch(
                plane.unit, "attend_merge", (group * kv_heads, taken), plane.padded,
                (partials, spans, rows.handle.positions, first, group, kv_heads, dim, scale,
                 out.pointer, out.stride),
                early=True,
            )  # fmt: skip

    def _make_room(self, floats: int) -> None:
        if self._partials.size < floats:
            self._partials = load_cupy().zeros(floats, np.float32)
