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
