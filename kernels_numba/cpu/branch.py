"""A residual of several branches: norms per branch, gates of low rank, outputs put in by them."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.norm import rms_row
from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import fma32, sigmoid32
from kernels_numba.jit import kernel, prange


@kernel(parallel=True)
def group_norm(
    x: int, x_stride: int, rows: int, groups: int, width: int, weight: int, weight_step: int,
    eps: float, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, g] = rms_norm(x[r, g]); the groups' weights are `weight_step` bytes apart. `width` is
    whole vectors."""
    for task in prange(rows * groups):
        r = task // groups
        at = 4 * width * (task % groups)
        rms_row(x + r * x_stride + at, weight + task % groups * weight_step, width, width, eps,
                out + r * out_stride + at)  # fmt: skip


@kernel()
def branch_gates(
    raw: int, raw_stride: int, rows: int, rank: int, branches: int, low: int, low_stride: int,
    inject: int, inject_stride: int,
) -> None:  # fmt: skip
    """low = silu(raw[:rank] / branches); inject = 2 σ(raw[rank:] / branches) unless it is 0."""
    scale = np.float32(1.0) / np.float32(branches)
    for r in range(rows):
        source = view_f32(raw + r * raw_stride, rank + branches)
        target = view_f32(low + r * low_stride, rank)
        for j in range(rank):
            value = source[j] * scale
            target[j] = value * sigmoid32(value)
        if inject != 0:
            strength = view_f32(inject + r * inject_stride, branches)
            for i in range(branches):
                strength[i] = np.float32(2.0) * sigmoid32(source[rank + i] * scale)


@kernel(parallel=True)
def branch_collapse(
    normed: int, normed_stride: int, gates: int, gate_stride: int, rows: int, branches: int,
    width: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r] = Σ_i σ(gates_i) · normed_i / branches, branches in order."""
    for r in prange(rows):
        source = view_f32(normed + r * normed_stride, branches * width)
        gate = view_f32(gates + r * gate_stride, branches * width)
        target = view_f32(out + r * out_stride, width)
        for j in range(width):
            total = np.float32(0.0)
            for i in range(branches):
                total = fma32(sigmoid32(gate[i * width + j]), source[i * width + j], total)
            target[j] = total / np.float32(branches)


@kernel(parallel=True)
def branch_expand(
    y: int, y_stride: int, rows: int, branches: int, width: int, inject: int, inject_stride: int,
    streams: int, stream_stride: int,
) -> None:  # fmt: skip
    """streams[r, i] += inject[r, i] · y[r]."""
    for r in prange(rows):
        added = view_f32(y + r * y_stride, width)
        strength = view_f32(inject + r * inject_stride, branches)
        for i in range(branches):
            held = view_f32(streams + r * stream_stride + 4 * i * width, width)
            for j in range(width):
                held[j] = fma32(strength[i], added[j], held[j])


@kernel()
def add_rows(x: int, x_stride: int, rows: int, width: int, out: int, out_stride: int) -> None:
    """out[r] += x[r]."""
    for r in range(rows):
        source = view_f32(x + r * x_stride, width)
        target = view_f32(out + r * out_stride, width)
        for j in range(width):
            target[j] = target[j] + source[j]


@kernel()
def gate_whole(x: int, x_stride: int, rows: int, width: int, gate: int, gate_stride: int) -> None:
    """x[r] *= σ(gate[r, 0])."""
    for r in range(rows):
        factor = sigmoid32(view_f32(gate + r * gate_stride, 1)[0])
        target = view_f32(x + r * x_stride, width)
        for j in range(width):
            target[j] = target[j] * factor
