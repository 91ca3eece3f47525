"""Attention of many rows on Hopper's own matrix instructions (attend_hopper.cu)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels_numba.backend import Attention, Rows
from kernels_numba.gpu.boxes import MAP_BYTES, Boxes, Maps
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor, Staging
from kernels_numba.gpu.plane import SPAN, CudaPlane
from kernels_numba.gpu.source import WIDE_HEADS, attend_wide_unit

I32Array = npt.NDArray[np.int32]

THREADS = 512
PLACES = 192
"""Pairs of a row and a head in a tile; the kernel's own constant, as those below."""
PART = 64
"""Values of a head that stand in a row of shared memory."""
STAGES = 2
LEAST_PIECE = 8
"""Rows of a cache block in which the copy engine's exchange of units repeats."""
LONG = 32
"""Rows of one request in a row that are worth a tile of their own."""
UNSENT = 0
"""The step of rows that are not known yet, when a graph is recorded."""
_U16 = np.dtype(np.uint16)


def long_rows(slots: I32Array, positions: I32Array) -> tuple[list[tuple[int, int]], int]:
    """(first row, rows) of each stretch of one slot at consecutive positions, as far as the last
    stretch of at least LONG rows; and where that ends."""
    joined = (slots[1:] == slots[:-1]) & (positions[1:] == positions[:-1] + 1)
    starts = np.concatenate([[0], np.flatnonzero(~joined) + 1])
    sizes = np.diff(np.concatenate([starts, [len(slots)]]))
    long = np.flatnonzero(sizes >= LONG)
    kept = int(long[-1]) + 1 if long.size else 0
    found = [(int(first), int(size)) for first, size in zip(starts, sizes, strict=True)][:kept]
    return found, sum(size for _, size in found)


def tiles_of(
    stretches: list[tuple[int, int]], slots: I32Array, positions: I32Array, size: int
) -> I32Array:
    """int32 [tiles, 4]: first row, rows, slot and last position of pieces of at most `size` rows,
    the longest first."""
    pieces = [
        (at, min(size, first + rows - at))
        for first, rows in stretches
        for at in range(first, first + rows, size)
    ]
    tiles = np.array(
        [(at, n, slots[at], positions[at + n - 1]) for at, n in pieces], np.int32
    ).reshape(-1, 4)
    return tiles[np.argsort(-tiles[:, 3], kind="stable")]


class AttendWide:
    """Launches the kernel; knows the tiles of the step and the maps of planes and queries."""

    def __init__(self, kernels: Kernels, staging: Staging, capacity: int, processors: int) -> None:
        self._kernels, self._staging, self._processors = kernels, staging, processors
        self._tiles = load_cupy().zeros((capacity, 4), np.int32)
        self._step = (UNSENT, 0)
        self._count = self._end = 0
        self._maps: dict[tuple[int, ...], Maps] = {}

    @staticmethod
    def takes(attention: Attention, plane: CudaPlane) -> bool:
        tokens = plane.block_tokens
        whole = SPAN % tokens == 0 or tokens % SPAN == 0
        return (
            attention.head_dim == plane.padded
            and plane.padded in WIDE_HEADS
            and attention.heads // attention.kv_heads <= PLACES
            and whole
            and tokens >= LEAST_PIECE
        )

    def run(
        self,
        rows: Rows,
        queries: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> int:
        """Attend the step's leading rows that stand in long stretches; how many those are."""
        group = attention.heads // attention.kv_heads
        held = PLACES // group
        if rows.handle.step == UNSENT:
            return 0
        self._prepare(rows, held)
        if not self._count:
            return 0
        dim, kv_heads = attention.head_dim, attention.kv_heads
        asked = self._query_map(queries, attention.heads, group, held, dim)
        keys, values = self._plane_maps(plane)
        positions, _, tables, width = rows.handle.metadata
        shared = dim // PART * 2 * PART * (PLACES + 2 * STAGES * SPAN) + 1024
        self._kernels.launch(
            attend_wide_unit(dim), "attend_wide",
            (min(self._processors, self._count * kv_heads),), THREADS,
            (asked, keys, values, positions, tables, width, int(self._tiles.data.ptr), self._count,
             group, kv_heads, held, attention.scale, plane.block_tokens, out.pointer, out.stride),
            shared,
        )  # fmt: skip
        return self._end

    def _prepare(self, rows: Rows, held: int) -> None:
        step = (rows.handle.step, held)
        if step == self._step:
            return
        slots, positions = rows.slots[: rows.count], rows.positions[: rows.count]
        stretches, self._end = long_rows(slots, positions)
        tiles = tiles_of(stretches, slots, positions, held)
        self._count, self._step = len(tiles), step
        if len(tiles):
            self._staging.send(int(self._tiles.data.ptr), tiles)

    def _plane_maps(self, plane: CudaPlane) -> tuple[int, int]:
        blocks, kv_heads, tokens, dim = plane.keys.shape
        key = (*plane.addresses, blocks, kv_heads, tokens, dim)
        if key not in self._maps:
            sizes, strides = (dim, tokens, blocks * kv_heads), (2 * dim, 2 * dim * tokens)
            box = (PART, min(tokens, SPAN), 1)
            self._maps[key] = Maps(
                [Boxes(at, _U16, sizes, strides, box, exchanged=True) for at in plane.addresses]
            )
        pointer = self._maps[key].pointer
        return pointer, pointer + MAP_BYTES

    def _query_map(self, queries: CudaTensor, heads: int, group: int, held: int, dim: int) -> int:
        key = (queries.pointer, queries.stride, heads, group, held, dim)
        if key not in self._maps:
            sizes = (dim, heads, queries.array.shape[0])
            strides, box = (2 * dim, 2 * queries.stride), (PART, group, held)
            boxes = Boxes(queries.pointer, _U16, sizes, strides, box, exchanged=True)
            self._maps[key] = Maps([boxes])
        return self._maps[key].pointer
