"""The CPU backend: float32 activations, Numba kernels, one arithmetic for every number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from kernels_numba.backend import (
    Attention,
    Experts,
    F32Array,
    I32Array,
    Norm,
    Routes,
    Routing,
    Rows,
    SharedExperts,
    head_width,
)
from kernels_numba.cpu import attention as attention_kernels
from kernels_numba.cpu import linear as linear_kernels
from kernels_numba.cpu import moe as moe_kernels
from kernels_numba.cpu import packed as packed_kernels
from kernels_numba.cpu import rotary as rotary_kernels
from kernels_numba.cpu import rows as row_kernels
from kernels_numba.cpu import selected as selected_kernels
from kernels_numba.cpu.extended import CpuExtended, address_of, head_norms
from kernels_numba.cpu.images import CpuImages
from kernels_numba.cpu.matrix import CpuMatrix
from kernels_numba.cpu.memory import Block, allocate, grown, padded, page_aligned
from kernels_numba.cpu.norm import rms_rows
from kernels_numba.cpu.packed import Packing
from kernels_numba.cpu.picker import CpuPicker
from kernels_numba.cpu.row_handle import RowHandle
from kernels_numba.cpu.span import SPAN
from kernels_numba.cpu.store import CpuEntries, CpuStore
from kernels_numba.extended import Selection
from kernels_numba.jit import compile_log, config, set_num_threads, threading_layer
from kernels_numba.packed_rows import PackedRow, RowCode
from kernels_numba.weights import VECTOR, Form, Part, dummy_part

_PAIR_BUFFERS = ("input", "raw", "act", "out", "sums")
DUMMY_ROWS = 1024
"""Rows of random weights that are made at once."""
PARTIAL_BYTES = 4 << 20
"""Scratch for attention spans computed side by side."""


class CpuPlane(CpuEntries):
    """Keys and values of one layer: [blocks, kv_heads, block_tokens] lines, float32 padded to whole
    vectors or packed. `addresses`, `lines` (bytes) and `packings` are of keys and of values."""

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
        code: RowCode,
    ) -> None:
        if SPAN % block_tokens:
            message = f"block_tokens must divide {SPAN}, not {block_tokens}"
            raise ValueError(message)
        self.block_tokens = block_tokens
        sides = [Packing(PackedRow(code, width)) for width in (head_dim, value_dim or head_dim)]
        self._sides = sides
        held = [allocate((blocks, kv_heads, block_tokens, side.line), np.uint8) for side in sides]
        self.addresses = (int(held[0].ctypes.data), int(held[1].ctypes.data))
        self.lines = (sides[0].line, sides[1].line)
        self.packings = (sides[0].address, sides[1].address)
        super().__init__(*held)


def _norming(norm: Norm | None, x: Block) -> linear_kernels.Norming:
    """What a projection of `x` takes for its norm."""
    if norm is None:
        return linear_kernels.NO_NORM
    return norm.weight.address, x.width, norm.eps


class _RouteHandle:
    """The addresses of a `Routes`, and room to sort its choices by expert."""

    __slots__ = ("gaps", "ids", "order", "place", "scratch", "top", "weights")

    def __init__(self, routes: Routes) -> None:
        self.top = int(routes.ids.shape[1])
        self.ids = int(routes.ids.ctypes.data)
        self.weights = int(routes.weights.ctypes.data)
        self.gaps = int(routes.gaps.ctypes.data)
        self.scratch = np.zeros((2, routes.ids.size), np.int32)
        self.order, self.place = (int(row.ctypes.data) for row in self.scratch)


class CpuBackend(CpuExtended, CpuImages):
    """Implements `kernels_numba.backend.Backend` for up to `capacity` rows on `threads` threads."""

    name = "cpu"

    def __init__(self, capacity: int, threads: int) -> None:
        self.capacity = capacity
        self._cores = int(config.NUMBA_NUM_THREADS)
        super().__init__(self._cores)
        self.threads = max(1, min(threads, self._cores))
        set_num_threads(self.threads)
        self._raw = Block(allocate((capacity, VECTOR), np.float32))
        self._normed = Block(allocate((capacity, VECTOR), np.float32))
        # One row per core, not per thread: the limit on threads belongs to the calling thread.
        self._kv = Block(allocate((1, VECTOR), np.float32))
        self._panels = Block(allocate((self._cores, VECTOR), np.float32))
        self._partials = allocate((PARTIAL_BYTES // 4,), np.float32)
        self._partials_at = int(self._partials.ctypes.data)
        self._pairs = {name: Block(allocate((1, VECTOR), np.float32)) for name in _PAIR_BUFFERS}
        self._starts = np.zeros(VECTOR, np.int32)

    def begin(self, rows: Rows) -> None:
        set_num_threads(self.threads)
        rows.handle.find_runs(rows)

    def record(
        self,
        rows: Rows,
        counts: Sequence[int],
        ceiling: int,
        steps: Sequence[Callable[[], None]],
    ) -> None:
        """Nothing: a step is run, not replayed."""

    def replay(self, rows: Rows, step: int) -> bool:
        return False

    def guard(self, doing: str) -> AbstractContextManager[None]:
        return nullcontext()

    def notes(self) -> list[str]:
        layer = threading_layer()
        notes = compile_log.summary()
        notes.append(f"cpu backend: {self.threads} threads, numba's {layer} layer")
        if layer == "workqueue":
            notes.append(
                "warning: the workqueue layer costs 85 µs a parallel region, omp's about 1: "
                "install GNU OpenMP (libgomp) or tbb"
            )
        return notes

    # Construction ------------------------------------------------------------------------------

    def rows(self, slots: int, table_width: int) -> Rows:
        rows = Rows(self.capacity, slots, table_width)
        rows.handle = RowHandle(rows)
        return rows

    def tensor(self, width: int, *, wide: bool = False) -> Block:
        return Block(allocate((self.capacity, padded(width)), np.float32), width)

    def vector(self, values: F32Array) -> Block:
        held = allocate((padded(values.size),), np.float32)
        held[: values.size] = values.reshape(-1)
        return Block(held, values.size)

    def matrix(self, parts: Sequence[Part]) -> CpuMatrix:
        matrix = CpuMatrix(parts)
        self._make_room(matrix)
        return matrix

    def _make_room(self, matrix: CpuMatrix) -> None:
        self._normed = grown(self._normed, self.capacity, matrix.depth)
        floats = linear_kernels.panel_floats(matrix.depth)
        self._panels = grown(self._panels, self._cores, floats)

    def cut(self, matrix: CpuMatrix, first: int, rows: int) -> CpuMatrix:
        return matrix.cut(first, rows)

    def dummy(self, form: Form, rows: int, columns: int, seed: int, multiple: int = 1) -> CpuMatrix:
        if form is not Form.BF16:
            return self.matrix([dummy_part(form, rows, columns, seed)])
        # In pieces: a model's experts are too large to be there twice.
        data, scale, factors = map(self.room, self.array_shapes(form, rows, columns, 0))
        for first in range(0, rows, DUMMY_ROWS):
            part = dummy_part(form, min(DUMMY_ROWS, rows - first), columns, (seed, first))
            data[first : first + part.rows, :columns] = part.data
        matrix = CpuMatrix.of(form, columns, data, scale, factors)
        self._make_room(matrix)
        return matrix

    def rotary_table(self, angles: F32Array, scale: float = 1.0) -> Block:
        table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        return Block(table * np.float32(scale))

    def plane(
        self,
        blocks: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int = 0,
        *,
        code: RowCode = RowCode.FLOAT,
    ) -> CpuPlane:
        return CpuPlane(blocks, block_tokens, kv_heads, head_dim, value_dim, code)

    def store(
        self,
        entries: int,
        rows: int,
        width: int,
        *,
        wide: bool = False,
        code: RowCode = RowCode.FLOAT,
        plain: int = 0,
    ) -> CpuStore:
        return CpuStore(entries, rows, PackedRow(code, width, plain))

    def transfer_memory(self, size: int) -> memoryview:
        return page_aligned(size)

    def fence_transfers(self) -> None:
        """Nothing: what was called is done."""

    def finish_transfers(self) -> None:
        """Nothing: transfers are done when they return."""

    def routes(self, top: int) -> Routes:
        routes = Routes(self.capacity, top)
        routes.handle = _RouteHandle(routes)
        return routes

    def logits(self, rows: int, vocab: int) -> F32Array:
        return np.zeros((rows, vocab), np.float32)

    def picker(self, rows: int, vocab: int, candidates: int) -> CpuPicker:
        return CpuPicker(rows, vocab, candidates)

    # Rows --------------------------------------------------------------------------------------

    def embed(self, rows: Rows, table: CpuMatrix, out: Block, *, first: int = 0) -> None:
        row_kernels.embed(
            table.widen, rows.handle.tokens, rows.count, first, table.rows, *table.weights,
            table.depth, out.address, out.stride,
        )  # fmt: skip

    def norm(self, rows: Rows, x: Block, norm: Norm, out: Block) -> None:
        rms_rows(
            x.address, x.stride, rows.count, norm.weight.address, x.width, padded(x.width),
            norm.eps, out.address, out.stride,
        )  # fmt: skip

    def join(self, rows: Rows, first: Block, second: Block, out: Block) -> None:
        out.array[: rows.count, : first.width] = first.array[: rows.count, : first.width]
        joined = out.array[: rows.count, first.width : first.width + second.width]
        joined[...] = second.array[: rows.count, : second.width]

    def write(self, x: Block, values: F32Array) -> None:
        x.array[: values.shape[0], : x.width] = values

    def read(self, x: Block, count: int) -> F32Array:
        return x.array[:count, : x.width].copy()

    def read_logits(self, logits: F32Array, count: int) -> F32Array:
        return logits[:count].copy()

    def read_routes(self, routes: Routes, count: int) -> tuple[I32Array, F32Array]:
        return routes.ids[:count].copy(), routes.weights[:count].copy()

    # Projections -------------------------------------------------------------------------------

    def linear(
        self,
        rows: Rows,
        x: Block,
        matrix: CpuMatrix,
        out: Block,
        *,
        norm: Norm | None = None,
        bias: Block | None = None,
        add: bool = False,
    ) -> None:
        raw = self._raw
        if raw.width < matrix.rows and (add or bias is not None):
            raw = self._raw = grown(raw, self.capacity, matrix.rows)
        shift = 0 if bias is None else bias.address
        linear_kernels.linear(
            matrix.dot, x.place, rows.count, matrix.weights, matrix.rows, matrix.depth, shift,
            int(add), raw.place, out.place, self._panels.place, _norming(norm, x),
            self._normed.place,
        )  # fmt: skip

    def gated(
        self,
        rows: Rows,
        x: Block,
        gate_up: CpuMatrix,
        out: Block,
        *,
        norm: Norm | None = None,
        limit: float = 0.0,
    ) -> None:
        raw = self._raw
        if raw.width < gate_up.rows:
            raw = self._raw = grown(raw, self.capacity, gate_up.rows)
        run = max(linear_kernels.FINE, gate_up.rows // (16 * self.threads) // 4 * 4)
        linear_kernels.gated(
            gate_up.dot, x.place, rows.count, gate_up.weights, gate_up.rows // 2, gate_up.depth,
            raw.place, out.place, self._panels.place, _norming(norm, x), self._normed.place, run,
            limit,
        )  # fmt: skip

    def head(
        self,
        x: Block,
        index: Sequence[int],
        norm: Norm | None,
        table: CpuMatrix,
        out: F32Array,
    ) -> None:
        count = len(index)
        packed = self._pairs["input"] = grown(self._pairs["input"], max(count, 1), x.width)
        packed.array[:count, : x.width] = x.array[list(index), : x.width]
        to, no_bias, no_residual = (int(out.ctypes.data), int(out.strides[0])), 0, 0
        linear_kernels.linear(
            table.dot, packed.place, count, table.weights, table.rows, table.depth, no_bias,
            no_residual, self._raw.place, to, self._panels.place, _norming(norm, x),
            self._normed.place,
        )  # fmt: skip

    # Attention ---------------------------------------------------------------------------------

    def rotary_cache_write(
        self, rows: Rows, qkv: Block, attention: Attention, plane: CpuPlane, queries: Block
    ) -> None:
        handle: RowHandle = rows.handle
        if plane.packings[0]:
            self._pack_to_cache(rows, qkv, attention, plane, queries)
            return
        rotary_kernels.split_to_cache(
            qkv.address, qkv.stride, rows.count, *handle.metadata, attention.heads,
            attention.kv_heads, attention.head_dim, attention.values, attention.key_at,
            padded(attention.head_dim), padded(attention.values), attention.value_scale,
            *head_norms(attention), attention.angles.address, attention.angles.width // 2,
            queries.address, queries.stride, *plane.addresses, plane.block_tokens,
        )  # fmt: skip

    def _pack_to_cache(
        self, rows: Rows, qkv: Block, attention: Attention, plane: CpuPlane, queries: Block
    ) -> None:
        """As `rotary_cache_write` of a plane whose lines are packed."""
        kv = self._kv = grown(self._kv, self.capacity, attention.row_width)
        self.split_rows(rows, qkv, attention, queries, kv)
        handle: RowHandle = rows.handle
        heads, width = attention.kv_heads, head_width(attention.head_dim)
        at = kv.address
        for side, wide in enumerate((width, head_width(attention.values))):
            packed_kernels.store_heads(
                at, kv.stride, rows.count, *handle.metadata, heads, wide,
                plane.block_tokens, plane.addresses[side], plane.lines[side],
                plane.packings[side],
            )  # fmt: skip
            at += 4 * heads * width

    def attend_paged(
        self, rows: Rows, queries: Block, attention: Attention, plane: CpuPlane, out: Block
    ) -> None:
        handle: RowHandle = rows.handle
        group = attention.heads // attention.kv_heads
        state = self._scratch.room(attention, packed=bool(plane.packings[0]))
        attention_kernels.attend_paged(
            queries.address, queries.stride, rows.count, *handle.metadata, group,
            attention.kv_heads, padded(attention.head_dim), attention.values,
            padded(attention.values), plane.block_tokens, attention.scale, *plane.addresses,
            *plane.lines, *plane.packings, address_of(attention.sinks), out.address, out.stride,
            self._scratch.address, self._scratch.stride, self._partials_at,
            self._partials.size // state, self.threads,
        )  # fmt: skip

    def attend_projected(
        self,
        rows: Rows,
        qkv: Block,
        attention: Attention,
        plane: CpuPlane,
        queries: Block,
        out: Block,
    ) -> None:
        self.rotary_cache_write(rows, qkv, attention, plane, queries)
        self.attend_paged(rows, queries, attention, plane, out)

    def attend_selected(
        self,
        rows: Rows,
        queries: Block,
        attention: Attention,
        plane: CpuPlane,
        selection: Selection,
        out: Block,
    ) -> None:
        _, slots, tables, width = rows.handle.metadata
        indices, counts, top = selection.handle
        self._scratch.room(attention, packed=bool(plane.packings[0]))
        selected_kernels.attend_selected(
            queries.address, queries.stride, rows.count, slots, tables, width, indices, counts, top,
            attention.heads // attention.kv_heads, attention.kv_heads, padded(attention.head_dim),
            attention.values, padded(attention.values), plane.block_tokens, attention.scale,
            *plane.addresses, *plane.lines, *plane.packings, out.address, out.stride,
            self._scratch.address, self._scratch.stride,
        )  # fmt: skip

    # Experts -----------------------------------------------------------------------------------

    def route(self, rows: Rows, x: Block, routing: Routing, routes: Routes) -> None:
        gate: CpuMatrix = routing.gate
        raw = self._raw = grown(self._raw, self.capacity, 3 * padded(routing.experts))
        no_bias, no_residual = 0, 0
        linear_kernels.linear(
            gate.dot, x.place, rows.count, gate.weights, gate.rows, gate.depth, no_bias,
            no_residual, raw.place, raw.place, self._panels.place, linear_kernels.NO_NORM,
            self._normed.place,
        )  # fmt: skip
        moe_kernels.route(
            raw.address, raw.stride, rows.count, routing.experts, int(routing.scores),
            address_of(routing.bias), address_of(routing.table), rows.handle.tokens, routing.top,
            int(routing.normalise), routing.scale, raw.address + 4 * padded(routing.experts),
            routes.handle.ids, routes.handle.weights, routes.handle.gaps,
        )  # fmt: skip

    def moe_shared(
        self,
        rows: Rows,
        x: Block,
        experts: Experts,
        routes: Routes,
        shared: SharedExperts,
        room: tuple[Block, Block],
        out: Block,
        *,
        add: bool = True,
    ) -> None:
        inner, given = room
        self.gated(rows, x, shared.gate_up, inner, limit=shared.limit)
        self.linear(rows, inner, shared.down, given)
        self.moe(rows, x, experts, routes, given, out, add=add)

    def moe(
        self,
        rows: Rows,
        x: Block,
        experts: Experts,
        routes: Routes,
        shared: Block | None,
        out: Block,
        *,
        add: bool = True,
    ) -> None:
        gate_up: CpuMatrix = experts.gate_up
        down: CpuMatrix = experts.down
        choice: _RouteHandle = routes.handle
        top, order, place = choice.top, choice.order, choice.place
        pairs = rows.count * top
        number = gate_up.rows // (2 * experts.intermediate)
        if self._starts.size <= number:
            self._starts = np.zeros(number + 1, np.int32)
        starts = int(self._starts.ctypes.data)
        taken, raw, act, result, sums = self._pair_buffers(top, experts)
        moe_kernels.group_by_expert(choice.ids, pairs, number, starts, order, place)
        moe_kernels.gather_pairs(
            x.address, x.stride, order, pairs, top, x.width, taken.address, taken.stride
        )
        moe_kernels.expert_rows(
            gate_up.dot, taken.address, taken.stride, pairs, starts, number, *gate_up.weights,
            experts.intermediate, gate_up.depth, raw.address, raw.stride, act.address, act.stride,
            down.dot, *down.weights, x.width, down.depth, result.address, result.stride,
            self._panels.address, self._panels.stride,
            experts.limit, choice.weights if experts.weigh_inside else 0, order,
        )  # fmt: skip
        moe_kernels.combine(
            result.address, result.stride, place,
            0 if experts.weigh_inside else choice.weights, top, rows.count,
            0 if shared is None else shared.address, 0 if shared is None else shared.stride,
            x.width, out.address, out.stride, sums.address, int(add),
        )  # fmt: skip

    def _pair_buffers(self, top: int, experts: Experts) -> list[Block]:
        widths = {
            "input": experts.gate_up.depth,
            "raw": 2 * experts.intermediate,
            "act": experts.down.depth,
            "out": experts.gate_up.columns,
            "sums": experts.gate_up.depth,
        }
        for name, width in widths.items():
            self._pairs[name] = grown(self._pairs[name], self.capacity * top, width)
        return [self._pairs[name] for name in widths]
