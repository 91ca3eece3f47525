"""Rows that join a residual of several streams, each stream as far as its own key fits."""

from __future__ import annotations

import math

import numpy as np

from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import fma32, sigmoid32
from kernels_numba.cpu.tiles import dot_line
from kernels_numba.jit import get_thread_id, kernel, prange
from kernels_numba.weights import VECTOR, Form

F32 = int(Form.F32)
_LEAST = np.float32(1e-6)


@kernel()
def _gate_stream(
    x: int, key: int, value: int, query_weight: int, key_weight: int, width: int, eps: float,
    out: int, scratch: int,
) -> None:  # fmt: skip
    """out = (x +) σ(±√|d|) value, d = ⟨x · query_weight, key · key_weight⟩ / (|x| |key| √width);
    x is added where it is `out`."""
    stream = view_f32(x, width)
    query_scale = view_f32(query_weight, width)
    key_scale = view_f32(key_weight, width)
    sums = view_f32(scratch, VECTOR)
    weighted = view_f32(scratch + 4 * VECTOR, width)
    for i in range(width):
        weighted[i] = stream[i] * query_scale[i] * key_scale[i]
    dot_line(F32, scratch + 4 * VECTOR, 0, 0, 0, key, 0, 0, 0, 0, width, scratch, 0)
    dot = sums[0]
    dot_line(F32, x, 0, 0, 0, x, 0, 0, 0, 0, width, scratch, 0)
    own = np.float32(np.float32(1.0) / np.sqrt(sums[0] / np.float32(width) + np.float32(eps)))
    dot_line(F32, key, 0, 0, 0, key, 0, 0, 0, 0, width, scratch, 0)
    other = np.float32(np.float32(1.0) / np.sqrt(sums[0] / np.float32(width) + np.float32(eps)))
    score = np.float32(dot * own * other / np.sqrt(np.float32(width)))
    root = np.sqrt(max(np.abs(score), _LEAST))
    gate = sigmoid32(np.float32(math.copysign(root, score)))
    added = view_f32(value, width)
    target = view_f32(out, width)
    for i in range(width):
        target[i] = fma32(gate, added[i], stream[i]) if out == x else gate * added[i]


@kernel(parallel=True)
def gate_streams(
    streams: int, stream_stride: int, rows: int, n: int, width: int, kv: int, kv_stride: int,
    query_weight: int, key_weight: int, eps: float, out: int, out_stride: int, scratch: int,
    scratch_stride: int,
) -> None:  # fmt: skip
    """The value of a row [keys n × width | value] for each stream, as far as its key fits; added to
    the streams where they are `out`."""
    for task in prange(rows * n):
        r = task // n
        i = task % n
        row = kv + r * kv_stride
        _gate_stream(streams + r * stream_stride + 4 * width * i, row + 4 * width * i,
                     row + 4 * width * n, query_weight + 4 * width * i, key_weight + 4 * width * i,
                     width, eps, out + r * out_stride + 4 * width * i,
                     scratch + get_thread_id() * scratch_stride)  # fmt: skip
