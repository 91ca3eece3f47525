"""What happens to a row's queries, keys and values between projection and attention."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.jit import kernel, prange


@kernel(inline=True)
def _norm_head(x: int, weight: int, dim: int, eps: float, out: int) -> None:
    """RMS norm over one head, summed in order."""
    source = view_f32(x, dim)
    target = view_f32(out, dim)
    if weight == 0:
        for i in range(dim):
            target[i] = source[i]
        return
    total = np.float32(0.0)
    for i in range(dim):
        total += source[i] * source[i]
    inverse = np.float32(1.0) / np.sqrt(total / np.float32(dim) + np.float32(eps))
    scale = view_f32(weight, dim)
    for i in range(dim):
        target[i] = (source[i] * inverse) * scale[i]


@kernel(inline=True)
def _rotate_half(x: int, cos_sin: int, half: int) -> None:
    """Rotate (x[i], x[half + i]) by the row's angle i; the table row is cos [half], sin [half]."""
    low = view_f32(x, half)
    high = view_f32(x + 4 * half, half)
    cos = view_f32(cos_sin, half)
    sin = view_f32(cos_sin + 4 * half, half)
    for i in range(half):
        a = low[i]
        b = high[i]
        low[i] = a * cos[i] - b * sin[i]
        high[i] = b * cos[i] + a * sin[i]


@kernel()
def _split_row(
    r: int, qkv: int, qkv_stride: int, heads: int, kv_heads: int, dim: int, value_dim: int,
    key_at: int, padded: int, value_scale: float, q_norm: int, k_norm: int, eps: float,
    cos_sin: int, half: int, queries: int, query_stride: int, keys: int, key_stride: int,
    values: int, value_stride: int,
) -> None:  # fmt: skip
    """A row of [q … k | v]: q normed and rotated to `queries`, k likewise and v scaled to the lines
    of their heads, `key_stride` and `value_stride` bytes apart. `key_at`: values before k."""
    row = qkv + r * qkv_stride
    for h in range(heads):
        target = queries + r * query_stride + 4 * h * padded
        _norm_head(row + 4 * h * dim, q_norm, dim, eps, target)
        _rotate_half(target, cos_sin, half)
    for h in range(kv_heads):
        place = keys + h * key_stride
        _norm_head(row + 4 * (key_at + h * dim), k_norm, dim, eps, place)
        _rotate_half(place, cos_sin, half)
        source = view_f32(row + 4 * (key_at + kv_heads * dim + h * value_dim), value_dim)
        target_values = view_f32(values + h * value_stride, value_dim)
        factor = np.float32(value_scale)
        for i in range(value_dim):
            target_values[i] = source[i] * factor


@kernel(parallel=True)
def split_to_cache(
    qkv: int, qkv_stride: int, rows: int, positions: int, slots: int, tables: int,
    table_width: int, heads: int, kv_heads: int, dim: int, value_dim: int, key_at: int, padded: int,
    value_padded: int, value_scale: float, q_norm: int, k_norm: int, eps: float, angles: int,
    half: int, queries: int, query_stride: int, keys: int, values: int, block_tokens: int,
) -> None:  # fmt: skip
    """Split qkv rows; q to `queries`, k and v to the paged places of their positions."""
    for r in prange(rows):
        position = view_i32(positions, r + 1)[r]
        entry = view_i32(slots, r + 1)[r] * table_width + position // block_tokens
        block = view_i32(tables, entry + 1)[entry]
        line = block * kv_heads * block_tokens + position % block_tokens
        _split_row(r, qkv, qkv_stride, heads, kv_heads, dim, value_dim, key_at, padded, value_scale,
                   q_norm, k_norm, eps, angles + position * half * 8, half, queries, query_stride,
                   keys + 4 * padded * line, 4 * padded * block_tokens,
                   values + 4 * value_padded * line, 4 * value_padded * block_tokens)  # fmt: skip


@kernel(parallel=True)
def split_to_rows(
    qkv: int, qkv_stride: int, rows: int, positions: int, heads: int, kv_heads: int, dim: int,
    value_dim: int, key_at: int, padded: int, value_scale: float, q_norm: int, k_norm: int,
    eps: float, angles: int, half: int, queries: int, query_stride: int, kv: int, kv_stride: int,
    key_width: int, value_width: int,
) -> None:  # fmt: skip
    """Split qkv rows; q to `queries`, k and v to rows [kv_heads × key_width | … × value_width]."""
    for r in prange(rows):
        position = view_i32(positions, r + 1)[r]
        keys = kv + r * kv_stride
        _split_row(r, qkv, qkv_stride, heads, kv_heads, dim, value_dim, key_at, padded, value_scale,
                   q_norm, k_norm, eps, angles + position * half * 8, half, queries, query_stride,
                   keys, 4 * key_width, keys + 4 * kv_heads * key_width,
                   4 * value_width)  # fmt: skip
