"""The CPU backend's operations of `ExtendedBackend`."""

from __future__ import annotations

import numpy as np

from kernels_numba.backend import Attention, F32Array, I32Array, Norm, Rows, head_width
from kernels_numba.cpu import conv as conv_kernels
from kernels_numba.cpu import delta as delta_kernels
from kernels_numba.cpu import rotary as rotary_kernels
from kernels_numba.cpu import window as window_kernels
from kernels_numba.cpu.branches import CpuBranches
from kernels_numba.cpu.hyper_connections import CpuHyper
from kernels_numba.cpu.latents import CpuLatents
from kernels_numba.cpu.matrix import CpuMatrix
from kernels_numba.cpu.memory import Block, padded
from kernels_numba.cpu.row_handle import RowHandle
from kernels_numba.cpu.scratch import Scratch
from kernels_numba.cpu.store import CpuStore
from kernels_numba.cpu.tables import CpuTables
from kernels_numba.extended import BlockConvolution, Convolution, DeltaRule


def address_of(vector: Block | None) -> int:
    return 0 if vector is None else vector.address


def head_norms(attention: Attention) -> tuple[int, int, float]:
    """Weights of the norms of q's and k's heads (0: none), and their eps."""
    q_norm, k_norm = attention.q_norm, attention.k_norm
    return (
        0 if q_norm is None else q_norm.weight.address,
        0 if k_norm is None else k_norm.weight.address,
        0.0 if q_norm is None else q_norm.eps,
    )


class CpuExtended(CpuLatents, CpuHyper, CpuTables, CpuBranches):
    """Implements what `kernels_numba.extended.ExtendedBackend` has beyond a Backend."""

    def __init__(self, cores: int) -> None:
        self._scratch = Scratch(cores)

    def take_rows(self, matrix: CpuMatrix, index: I32Array) -> CpuMatrix:
        return matrix.take(index)

    def spread_logits(self, few: F32Array, count: int, ids: I32Array, out: F32Array) -> None:
        out[:count] = -np.inf
        out[:count, ids] = few[:count, : len(ids)]

    def split_rows(
        self, rows: Rows, qkv: Block, attention: Attention, queries: Block, kv: Block
    ) -> None:
        rotary_kernels.split_to_rows(
            qkv.address, qkv.stride, rows.count, rows.handle.metadata[0], attention.heads,
            attention.kv_heads, attention.head_dim, attention.values, attention.key_at,
            padded(attention.head_dim), attention.value_scale, *head_norms(attention),
            attention.angles.address, attention.angles.width // 2, queries.address, queries.stride,
            kv.address, kv.stride, head_width(attention.head_dim), head_width(attention.values),
        )  # fmt: skip

    def attend_window(
        self,
        rows: Rows,
        queries: Block,
        attention: Attention,
        kv: Block,
        ring: CpuStore,
        out: Block,
    ) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        self._scratch.room(attention)
        window_kernels.attend_window(
            queries.address, queries.stride, rows.count, positions, slots, handle.starts_at,
            handle.ends_at if attention.both_ways else 0, attention.window,
            attention.heads // attention.kv_heads, attention.kv_heads,
            padded(attention.head_dim), attention.values, padded(attention.values),
            head_width(attention.head_dim), head_width(attention.values), attention.scale,
            kv.address, kv.stride, ring.address, *ring.lines, address_of(attention.sinks),
            out.address, out.stride, self._scratch.address, self._scratch.stride,
        )  # fmt: skip

    def ring_write(self, rows: Rows, values: Block, ring: CpuStore) -> None:
        positions, slots, _, _ = rows.handle.metadata
        window_kernels.ring_write(
            values.address, values.stride, rows.count, positions, slots, ring.width, ring.address,
            *ring.lines,
        )  # fmt: skip

    def causal_conv(
        self, rows: Rows, x: Block, convolution: Convolution, ring: CpuStore, out: Block
    ) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        conv_kernels.causal_conv(
            x.address, x.stride, rows.count, positions, slots, handle.starts_at,
            convolution.weight.address, convolution.taps, convolution.dilation,
            convolution.channels, int(convolution.silu), ring.address, *ring.lines, out.address,
            out.stride,
        )  # fmt: skip

    def delta_gates(
        self, rows: Rows, ab: Block, log_rate: Block, bias: Block, decay: Block, beta: Block
    ) -> None:
        delta_kernels.delta_gates(
            ab.address, ab.stride, rows.count, log_rate.width, log_rate.address, bias.address,
            decay.address, decay.stride, beta.address, beta.stride,
        )  # fmt: skip

    def gated_delta(
        self,
        rows: Rows,
        qkv: Block,
        rule: DeltaRule,
        decay: Block,
        beta: Block,
        state: CpuStore,
        out: Block,
    ) -> None:
        handle: RowHandle = rows.handle
        positions, slots, _, _ = handle.metadata
        lines, stride = state.lines
        scratch = self._scratch.floats(2 * rule.key_dim + rule.value_dim)
        delta_kernels.gated_delta(
            qkv.address, qkv.stride, rows.count, positions, slots, handle.runs_at,
            handle.run_count, rule.key_heads, rule.value_heads, rule.key_dim, rule.value_dim,
            decay.address, decay.stride, rule.channels, beta.address, beta.stride, state.address,
            lines * stride, stride, out.address, out.stride, scratch.address, scratch.stride,
        )  # fmt: skip

    def gated_norm(
        self, rows: Rows, x: Block, gate: Block, norm: Norm, heads: int, out: Block, *, silu: bool
    ) -> None:
        delta_kernels.gated_norm(
            x.address, x.stride, rows.count, gate.address, gate.stride, norm.weight.address, heads,
            norm.weight.width, norm.eps, int(silu), out.address, out.stride,
        )  # fmt: skip

    def integers(self, values: I32Array) -> Block:
        return Block(np.ascontiguousarray(values))

    def pack_rows(self, x: Block, index: I32Array) -> None:
        x.array[: index.size] = x.array[index]

    def unpack_rows(self, x: Block, index: I32Array) -> None:
        x.array[index] = x.array[: index.size].copy()

    def copy(self, rows: Rows, x: Block, out: Block, *, at: int = 0) -> None:
        out.array[: rows.count, at : at + x.width] = x.array[: rows.count, : x.width]

    def block_conv(
        self,
        rows: Rows,
        x: Block,
        coefficients: Block,
        convolution: BlockConvolution,
        side: int,
        out: Block,
        *,
        add: bool,
    ) -> None:
        shape = convolution
        row = 2 * shape.channels
        group = 2 * shape.channels // shape.group
        conv_kernels.block_conv(
            x.address, x.stride, rows.count, rows.handle.starts_at,
            coefficients.address + 4 * side * group, coefficients.stride,
            shape.base.address + 4 * side * row, shape.channels, shape.group, int(add), out.address,
            out.stride,
        )  # fmt: skip

    def gate(self, rows: Rows, x: Block, gate: Block, at: int) -> None:
        delta_kernels.gate_rows(
            x.address, x.stride, rows.count, x.width, gate.address + 4 * at, gate.stride
        )

    def channel_gates(
        self,
        rows: Rows,
        f: Block,
        b: Block,
        log_rate: Block,
        bias: Block,
        bound: float,
        decay: Block,
        beta: Block,
    ) -> None:
        heads = log_rate.width
        delta_kernels.channel_gates(
            f.address, f.stride, b.address, b.stride, rows.count, heads, bias.width // heads,
            log_rate.address, bias.address, bound, decay.address, decay.stride, beta.address,
            beta.stride,
        )  # fmt: skip
