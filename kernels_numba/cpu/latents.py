"""The CPU backend's operations over latents: rotation, selection, grouped products, attention."""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import I32Array, Norm, Rows
from kernels_numba.cpu import entries as entry_kernels
from kernels_numba.cpu import grouped as grouped_kernels
from kernels_numba.cpu import heads as head_kernels
from kernels_numba.cpu import index as index_kernels
from kernels_numba.cpu import latent as latent_kernels
from kernels_numba.cpu import packed as packed_kernels
from kernels_numba.cpu import pool as pool_kernels
from kernels_numba.cpu import rounding as round_kernels
from kernels_numba.cpu.matrix import CpuMatrix
from kernels_numba.cpu.memory import Block, padded
from kernels_numba.cpu.norm import rms_rows
from kernels_numba.cpu.row_handle import RowHandle
from kernels_numba.cpu.scratch import Scratch
from kernels_numba.cpu.span import SPAN
from kernels_numba.cpu.store import CpuStore
from kernels_numba.extended import (
    Candidates,
    Entries,
    EntryAttention,
    Index,
    LatentAttention,
    Pooling,
    Rotation,
    Rounding,
    Selection,
)
from kernels_numba.weights import VECTOR


class CpuLatents:
    """Part of what `kernels_numba.extended.ExtendedBackend` has beyond a Backend."""

    capacity: int
    _scratch: Scratch

    def selection(self, top: int) -> Selection:
        held = Selection(self.capacity, top)
        held.handle = (int(held.indices.ctypes.data), int(held.counts.ctypes.data), top)
        return held

    def read_selection(self, selection: Selection, count: int) -> I32Array:
        indices = selection.indices[:count].copy()
        beyond = np.arange(indices.shape[1]) >= selection.counts[:count, None]
        indices[beyond] = -1
        return indices

    def norm_part(self, rows: Rows, x: Block, norm: Norm, out: Block) -> None:
        width = norm.weight.width
        rms_rows(
            x.address, x.stride, rows.count, norm.weight.address, width, width, norm.eps,
            out.address, out.stride,
        )  # fmt: skip

    def layer_norm(
        self, rows: Rows, x: Block, weight: Block, bias: Block, eps: float, out: Block
    ) -> None:
        head_kernels.layer_norm(
            x.address, x.stride, rows.count, weight.address, bias.address, x.width, eps,
            out.address, out.stride,
        )  # fmt: skip

    def rotate(self, rows: Rows, x: Block, rotation: Rotation, *, inverse: bool = False) -> None:
        turn = rotation
        head_kernels.rotate_heads(
            x.address, x.stride, rows.count, rows.handle.metadata[0], turn.heads,
            4 * turn.width, 4 * turn.at, turn.half, int(turn.pairs), int(inverse), turn.every,
            turn.angles.address,
        )  # fmt: skip

    def norm_heads(self, rows: Rows, x: Block, heads: int, eps: float) -> None:
        width = x.width // heads
        scratch = self._scratch.floats(VECTOR)
        head_kernels.norm_heads(
            x.address, x.stride, rows.count, heads, width, eps, scratch.address, scratch.stride
        )

    def round_rows(self, rows: Rows, x: Block, rounding: Rounding) -> None:
        round_kernels.round_rows(
            x.address, x.stride, rows.count, int(rounding.code), rounding.width, rounding.block
        )

    def hadamard(self, rows: Rows, x: Block, heads: int) -> None:
        round_kernels.hadamard(x.address, x.stride, rows.count, heads, x.width // heads)

    def copy_heads(
        self,
        rows: Rows,
        x: Block,
        source: tuple[int, int],
        heads: int,
        width: int,
        out: Block,
        target: tuple[int, int],
    ) -> None:
        head_kernels.copy_heads(
            x.address, x.stride, rows.count, heads, 4 * source[0], 4 * source[1], width,
            out.address, out.stride, 4 * target[0], 4 * target[1],
        )  # fmt: skip

    def store_rows(self, rows: Rows, x: Block, store: CpuStore, *, every: int = 1) -> None:
        handle: RowHandle = rows.handle
        block_rows, line = store.lines
        if store.packing:
            packed_kernels.store_packed(
                x.address, x.stride, rows.count, *handle.metadata, every, block_rows,
                store.address, line, store.packing,
            )  # fmt: skip
            return
        head_kernels.store_rows(
            x.address, x.stride, rows.count, *handle.metadata, every, store.width, block_rows,
            store.address, line,
        )  # fmt: skip

    def grouped_linear(
        self, rows: Rows, x: Block, matrix: CpuMatrix, groups: int, out: Block
    ) -> None:
        columns = matrix.rows // groups
        panels = self._scratch.floats(columns * matrix.depth)
        grouped_kernels.grouped_linear(
            matrix.dot, x.address, x.stride, rows.count, *matrix.weights, groups, columns,
            matrix.depth, 4 * matrix.columns, out.address, out.stride, panels.address,
            panels.stride,
        )  # fmt: skip

    def grouped_sum(
        self,
        rows: Rows,
        x: Block,
        stride: int,
        matrix: CpuMatrix,
        groups: int,
        out: Block,
        width: int,
    ) -> None:
        panels = self._scratch.floats(grouped_kernels.PANEL_ROWS * matrix.depth)
        grouped_kernels.grouped_sum(
            matrix.widen, x.address, x.stride, rows.count, *matrix.weights, groups,
            matrix.rows // groups, matrix.depth, 4 * stride, out.address, out.stride, 4 * width,
            panels.address, panels.stride,
        )  # fmt: skip

    def index_select(
        self,
        rows: Rows,
        queries: Block,
        weights: Block,
        index: Index,
        keys: CpuStore,
        selection: Selection,
        *,
        candidates: Candidates | None = None,
    ) -> None:
        handle: RowHandle = rows.handle
        indices, counts, top = selection.handle
        size, within, blocks, block_counts, block_top = 0, 0, 0, 0, 0
        if candidates is not None:
            size, within = candidates.size, int(candidates.given)
            blocks, block_counts, block_top = candidates.blocks.handle
        block_rows, line = keys.lines
        most = rows.tables.shape[1] * block_rows
        most += -(-most // size) if size else 0
        panel = SPAN * padded(index.dim) if keys.packing else 0
        scratch = self._scratch.floats(index_kernels.BINS + panel + index.heads * SPAN + most)
        index_kernels.index_select(
            queries.address, queries.stride, weights.address, weights.stride, rows.count,
            *handle.metadata, index.every, index.heads, padded(index.dim), index.scale,
            index.weight_scale, block_rows, keys.address, line, keys.packing, top, indices, counts,
            size, block_top, blocks, block_counts, within, scratch.address, scratch.stride,
        )  # fmt: skip

    def attend_latent(
        self,
        rows: Rows,
        queries: Block,
        attention: LatentAttention,
        store: CpuStore,
        selection: Selection | None,
        out: Block,
    ) -> None:
        handle: RowHandle = rows.handle
        indices, counts, top = (0, 0, 0) if selection is None else selection.handle
        block_rows, line = store.lines
        width, values = padded(attention.width), padded(attention.value_dim)
        heads = latent_kernels.TASK_HEADS
        scratch = self._scratch.floats(2 * heads * (values + VECTOR) + SPAN * (heads + width))
        latent_kernels.attend_latent(
            queries.address, queries.stride, rows.count, *handle.metadata, indices, counts, top,
            attention.heads, width, attention.value_dim, values, block_rows, attention.scale,
            store.address, line, store.packing, out.address, out.stride, scratch.address,
            scratch.stride,
        )  # fmt: skip

    def attend_entries(
        self,
        rows: Rows,
        queries: Block,
        attention: EntryAttention,
        kv: Block,
        ring: CpuStore,
        entries: Entries | None,
        out: Block,
    ) -> None:
        handle: RowHandle = rows.handle
        width, heads = attention.width, latent_kernels.TASK_HEADS
        every, chosen, place = 0, (0, 0, 0), (1, 0, 0)
        if entries is not None:
            store: CpuStore = entries.store
            every, place = entries.every, (store.lines[0], store.address, store.lines[1])
            chosen = (0, 0, 0) if entries.selection is None else entries.selection.handle
        scratch = self._scratch.floats(2 * heads * (width + VECTOR) + SPAN * (heads + width))
        entry_kernels.attend_entries(
            queries.address, queries.stride, rows.count, *handle.metadata, handle.starts_at,
            handle.ends_at if attention.both_ways else 0,
            handle.floors_at if attention.floored else 0, attention.heads, width, attention.scale,
            attention.window, kv.address, kv.stride, ring.address, *ring.lines, every, *chosen,
            *place, 0 if attention.sinks is None else attention.sinks.address, out.address,
            out.stride, scratch.address, scratch.stride,
        )  # fmt: skip

    def pool_rows(self, rows: Rows, x: Block, pooling: Pooling, ring: CpuStore, out: Block) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        pool_kernels.pool_rows(
            x.address, x.stride, rows.count, positions, slots, handle.starts_at, pooling.every,
            pooling.parts, pooling.width, pooling.bias.address, ring.address, *ring.lines,
            out.address, out.stride,
        )  # fmt: skip

    def mean_rows(self, rows: Rows, x: Block, every: int, ring: CpuStore, out: Block) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        pool_kernels.mean_rows(
            x.address, x.stride, rows.count, positions, slots, handle.starts_at, every, x.width,
            ring.address, *ring.lines, out.address, out.stride,
        )  # fmt: skip

    def unfold(self, rows: Rows, pools: Selection, every: int, out: Selection) -> None:
        held, held_counts, held_top = pools.handle
        indices, counts, top = out.handle
        pool_kernels.unfold(
            rows.count, rows.handle.metadata[0], held, held_counts, held_top, every, indices,
            counts, top,
        )  # fmt: skip
