"""Causal depthwise convolution over a request's positions; older inputs come from a ring."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import fma32, sigmoid32
from kernels_numba.jit import kernel, prange


@kernel(parallel=True)
def causal_conv(
    x: int, x_stride: int, rows: int, positions: int, slots: int, starts: int, weight: int,
    taps: int, dilation: int, channels: int, silu: int, ring: int, ring_rows: int,
    ring_stride: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] = act(Σ_j weight[j, c] · input of position p − (taps − 1 − j) · dilation), the
    oldest first; positions before 0 are zero. starts as in `window.attend_window`."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        fresh = position - (r - view_i32(starts, rows)[r])
        history = ring + view_i32(slots, rows)[r] * ring_rows * ring_stride
        target = view_f32(out + r * out_stride, channels)
        for c in range(channels):
            target[c] = np.float32(0.0)
        for j in range(taps):
            at = position - (taps - 1 - j) * dilation
            if at >= 0:
                row = history + at % ring_rows * ring_stride
                if at >= fresh:
                    row = x + (r - (position - at)) * x_stride
                source = view_f32(row, channels)
                factor = view_f32(weight + 4 * j * channels, channels)
                for c in range(channels):
                    target[c] = fma32(factor[c], source[c], target[c])
        if silu != 0:
            for c in range(channels):
                target[c] = target[c] * sigmoid32(target[c])


@kernel(parallel=True)
def block_conv(
    x: int, x_stride: int, rows: int, starts: int, coefficients: int, coefficient_stride: int,
    base: int, channels: int, group: int, residual: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, c] (+)= (base[0, c] + k[r, 0, g]) x[r, c] + (base[1, c] + k[r, 1, g]) x[r − 1, c].

    g = c / group. The second term is there where row r − 1 is of the same run: starts int32 [rows].
    """
    groups = channels // group
    own_base = view_f32(base, channels)
    last_base = view_f32(base + 4 * channels, channels)
    for r in prange(rows):
        k = view_f32(coefficients + r * coefficient_stride, 2 * groups)
        source = view_f32(x + r * x_stride, channels)
        follows = view_i32(starts, rows)[r] < r
        before = view_f32(x + (r - 1) * x_stride if follows else x + r * x_stride, channels)
        target = view_f32(out + r * out_stride, channels)
        for c in range(channels):
            value = (own_base[c] + k[c // group]) * source[c]
            if follows:
                value = fma32(last_base[c] + k[groups + c // group], before[c], value)
            target[c] = target[c] + value if residual != 0 else value
