"""Hyper-connections: a residual of several streams, mixed anew around every sublayer."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import exp32, fma32, sigmoid32
from kernels_numba.cpu.tiles import dot_line
from kernels_numba.jit import kernel, prange
from kernels_numba.weights import Form

F32 = int(Form.F32)
_ONE = np.float32(1.0)


@kernel()
def _divide_lines(comb: int, n: int, line: int, step: int, eps: float) -> None:
    """Divide each of n lines by its sum plus eps: values `step` apart, lines `line` apart."""
    c = view_f32(comb, n * n)
    for i in range(n):
        total = np.float32(0.0)
        for j in range(n):
            total += c[line * i + step * j]
        for j in range(n):
            c[line * i + step * j] = c[line * i + step * j] / (total + np.float32(eps))


@kernel()
def _sinkhorn(comb: int, n: int, eps: float, iterations: int) -> None:
    """Softmax of each row plus eps, then columns and rows divided by their sums in turn."""
    c = view_f32(comb, n * n)
    for i in range(n):
        top = c[n * i]
        for j in range(1, n):
            top = max(top, c[n * i + j])
        total = np.float32(0.0)
        for j in range(n):
            c[n * i + j] = exp32(c[n * i + j] - top)
            total += c[n * i + j]
        for j in range(n):
            c[n * i + j] = c[n * i + j] / total + np.float32(eps)
    _divide_lines(comb, n, 1, n, eps)
    for _ in range(1, iterations):
        _divide_lines(comb, n, n, 1, eps)
        _divide_lines(comb, n, 1, n, eps)


@kernel()
def _mix_row(
    streams: int, raw: int, n: int, width: int, base: int, scale: int, norm_eps: float, eps: float,
    iterations: int, spreads: int, mixes: int,
) -> None:  # fmt: skip
    count = 2 * n + n * n if spreads != 0 else n
    m = view_f32(mixes, count)
    source = view_f32(raw, count)
    shift = view_f32(base, count)
    factor = view_f32(scale, 3)
    dot_line(F32, streams, 0, 0, 0, streams, 0, 0, 0, 0, n * width, mixes, 0)
    mean = np.float32(m[0] / np.float32(n * width))
    inverse = np.float32(_ONE / np.sqrt(mean + np.float32(norm_eps)))
    for i in range(count):
        part = min(i // n, 2)
        m[i] = source[i] * inverse * factor[part] + shift[i]
    for i in range(n):
        m[i] = sigmoid32(m[i]) + np.float32(eps)
    if spreads != 0:
        for i in range(n, 2 * n):
            m[i] = np.float32(2.0) * sigmoid32(m[i])
        _sinkhorn(mixes + 8 * n, n, eps, iterations)


@kernel(parallel=True)
def hyper_mix(
    streams: int, stream_stride: int, raw: int, raw_stride: int, rows: int, n: int, width: int,
    base: int, scale: int, norm_eps: float, eps: float, iterations: int, spreads: int, mixes: int,
    mix_stride: int,
) -> None:  # fmt: skip
    """mixes[r] = [pre n | post n | comb n × n] of raw = fn · streams, by the streams' own RMS; of a
    site that does not spread [pre n]."""
    for r in prange(rows):
        _mix_row(streams + r * stream_stride, raw + r * raw_stride, n, width, base, scale, norm_eps,
                 eps, iterations, spreads, mixes + r * mix_stride)  # fmt: skip


@kernel(parallel=True)
def hyper_collapse(
    streams: int, stream_stride: int, rows: int, n: int, width: int, weights: int,
    weight_stride: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r] = Σ_i weights[r, i] · streams[r, i], in order."""
    for r in prange(rows):
        weight = view_f32(weights + r * weight_stride, n)
        target = view_f32(out + r * out_stride, width)
        for j in range(width):
            target[j] = np.float32(0.0)
        for i in range(n):
            source = view_f32(streams + r * stream_stride + 4 * i * width, width)
            factor = weight[i]
            for j in range(width):
                target[j] = fma32(factor, source[j], target[j])


@kernel(parallel=True)
def hyper_expand(
    y: int, y_stride: int, rows: int, n: int, width: int, mixes: int, mix_stride: int, streams: int,
    stream_stride: int,
) -> None:  # fmt: skip
    """streams[r, j] = post_j · y[r] + Σ_i comb[i, j] · streams[r, i], value by value."""
    for r in prange(rows):
        mix = view_f32(mixes + r * mix_stride, 2 * n + n * n)
        added = view_f32(y + r * y_stride, width)
        held = view_f32(streams + r * stream_stride, n * width)
        before = np.empty(n, np.float32)
        for k in range(width):
            for i in range(n):
                before[i] = held[i * width + k]
            for j in range(n):
                value = np.float32(mix[n + j] * added[k])
                for i in range(n):
                    value = fma32(mix[2 * n + n * i + j], before[i], value)
                held[j * width + k] = value


@kernel(parallel=True)
def mean_streams(
    streams: int, stream_stride: int, rows: int, n: int, width: int, out: int, out_stride: int
) -> None:
    """out[r] = Σ_i streams[r, i] / n."""
    for r in prange(rows):
        target = view_f32(out + r * out_stride, width)
        for j in range(width):
            target[j] = np.float32(0.0)
        for i in range(n):
            source = view_f32(streams + r * stream_stride + 4 * i * width, width)
            for j in range(width):
                target[j] += source[j]
        for j in range(width):
            target[j] = target[j] / np.float32(n)
