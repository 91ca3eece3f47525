"""The gated delta rule, token by token: a prompt read in any chunks gives the recurrence's bits.

Per head a state S [keys, values] in float32:
S ← decay · S; δ = β (v − Sᵀk); S ← S + k δᵀ; o = Sᵀq, with q and k of unit length and q divided by
the root of its size.
"""

from __future__ import annotations

import math

import numpy as np

from kernels_numba.cpu.pointers import view_f32, view_i32
from kernels_numba.cpu.scalar import fma32, sigmoid32
from kernels_numba.jit import get_thread_id, kernel, prange

_UNIT_EPS = np.float32(1e-6)


@kernel()
def delta_gates(
    ab: int, ab_stride: int, rows: int, heads: int, log_rate: int, bias: int, decay: int,
    decay_stride: int, beta: int, beta_stride: int,
) -> None:  # fmt: skip
    """decay = exp(−exp(log_rate) · softplus(a + bias)), beta = sigmoid(b) of rows [a | b], per
    head."""
    rate = view_f32(log_rate, heads)
    shift = view_f32(bias, heads)
    for r in range(rows):
        source = view_f32(ab + r * ab_stride, 2 * heads)
        keep = view_f32(decay + r * decay_stride, heads)
        strength = view_f32(beta + r * beta_stride, heads)
        for h in range(heads):
            x = float(source[h] + shift[h])
            softplus = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
            keep[h] = np.float32(math.exp(-math.exp(float(rate[h])) * softplus))
            strength[h] = sigmoid32(source[heads + h])


@kernel(inline=True)
def _unit(source: int, width: int, scale: float, out: int) -> None:
    """out = source / √(Σ source² + 1e-6) · scale, summed in order."""
    x = view_f32(source, width)
    total = np.float32(0.0)
    for i in range(width):
        total = fma32(x[i], x[i], total)
    inverse = np.float32(np.float32(1.0) / np.sqrt(total + _UNIT_EPS)) * np.float32(scale)
    target = view_f32(out, width)
    for i in range(width):
        target[i] = x[i] * inverse


@kernel(inline=True)
def _token(
    state: int, state_stride: int, keys: int, values: int, key: int, query: int, value: int,
    decay: int, channels: int, beta: float, delta: int, out: int,
) -> None:  # fmt: skip
    """One step of one head; `channels` decays, one per key channel or one for all."""
    k = view_f32(key, keys)
    q = view_f32(query, keys)
    keep = view_f32(decay, channels)
    change = view_f32(delta, values)
    target = view_f32(out, values)
    for j in range(values):
        change[j] = np.float32(0.0)
        target[j] = np.float32(0.0)
    for i in range(keys):
        line = view_f32(state + i * state_stride, values)
        factor = keep[i] if channels > 1 else keep[0]
        for j in range(values):
            line[j] = line[j] * factor
            change[j] = fma32(line[j], k[i], change[j])
    v = view_f32(value, values)
    for j in range(values):
        change[j] = np.float32(beta) * (v[j] - change[j])
    for i in range(keys):
        line = view_f32(state + i * state_stride, values)
        for j in range(values):
            line[j] = fma32(k[i], change[j], line[j])
            target[j] = fma32(line[j], q[i], target[j])


@kernel(parallel=True)
def gated_delta(
    qkv: int, qkv_stride: int, rows: int, positions: int, slots: int, runs: int, run_count: int,
    key_heads: int, value_heads: int, keys: int, values: int, decay: int, decay_stride: int,
    channels: int, beta: int, beta_stride: int, state: int, slot_bytes: int, state_stride: int,
    out: int, out_stride: int, scratch: int, scratch_stride: int,
) -> None:  # fmt: skip
    """out[r] = the heads' outputs of row r; states advance by the rows of each run.

    A row of qkv is [q: key_heads × keys | k: alike | v: value_heads × values]; value head h uses
    key head h · key_heads / value_heads. State of a slot: [value_heads, keys] lines of values,
    taken as zero where a run begins at position 0. runs int32 [run_count + 1]: their first rows.
    """
    share = value_heads // key_heads
    first_rows = view_i32(runs, run_count + 1)
    for task in prange(run_count * value_heads):
        first = first_rows[task // value_heads]
        last = first_rows[task // value_heads + 1]
        h = task % value_heads
        mine = scratch + get_thread_id() * scratch_stride
        query, key, delta = mine, mine + 4 * keys, mine + 8 * keys
        held = state + view_i32(slots, rows)[first] * slot_bytes + h * keys * state_stride
        if view_i32(positions, rows)[first] == 0:
            for i in range(keys):
                line = view_f32(held + i * state_stride, values)
                for j in range(values):
                    line[j] = np.float32(0.0)
        for r in range(first, last):
            row = qkv + r * qkv_stride
            _unit(row + 4 * (h // share) * keys, keys, 1.0 / math.sqrt(keys), query)
            _unit(row + 4 * (key_heads + h // share) * keys, keys, 1.0, key)
            _token(held, state_stride, keys, values, key, query,
                   row + 4 * (2 * key_heads * keys + h * values),
                   decay + r * decay_stride + 4 * h * channels, channels,
                   view_f32(beta + r * beta_stride, value_heads)[h], delta,
                   out + r * out_stride + 4 * h * values)  # fmt: skip


@kernel(parallel=True)
def gated_norm(
    x: int, x_stride: int, rows: int, gate: int, gate_stride: int, weight: int, heads: int,
    width: int, eps: float, silu: int, out: int, out_stride: int,
) -> None:  # fmt: skip
    """out[r, h] = rms_norm(x[r, h]) · weight · act(gate[r, h]); act is silu or sigmoid."""
    scale = view_f32(weight, width)
    for r in prange(rows):
        for h in range(heads):
            source = view_f32(x + r * x_stride + 4 * h * width, width)
            z = view_f32(gate + r * gate_stride + 4 * h * width, width)
            target = view_f32(out + r * out_stride + 4 * h * width, width)
            total = np.float32(0.0)
            for i in range(width):
                total = fma32(source[i], source[i], total)
            mean = np.float32(total / np.float32(width))
            inverse = np.float32(np.float32(1.0) / np.sqrt(mean + np.float32(eps)))
            for i in range(width):
                factor = sigmoid32(z[i])
                if silu != 0:
                    factor = z[i] * factor
                target[i] = (source[i] * inverse) * scale[i] * factor


@kernel(parallel=True)
def gate_rows(x: int, x_stride: int, rows: int, width: int, gate: int, gate_stride: int) -> None:
    """x[r] *= sigmoid(gate[r])."""
    for r in prange(rows):
        target = view_f32(x + r * x_stride, width)
        z = view_f32(gate + r * gate_stride, width)
        for i in range(width):
            target[i] = target[i] * sigmoid32(z[i])


@kernel(parallel=True)
def channel_gates(
    f: int, f_stride: int, b: int, b_stride: int, rows: int, heads: int, dim: int, log_rate: int,
    bias: int, bound: float, decay: int, decay_stride: int, beta: int, beta_stride: int,
) -> None:  # fmt: skip
    """decay = exp(bound · sigmoid(exp(log_rate) · (f + bias))) per key channel of each head,
    beta = sigmoid(b) per head."""
    rate = view_f32(log_rate, heads)
    shift = view_f32(bias, heads * dim)
    for r in prange(rows):
        source = view_f32(f + r * f_stride, heads * dim)
        keep = view_f32(decay + r * decay_stride, heads * dim)
        strength = view_f32(beta + r * beta_stride, heads)
        raw = view_f32(b + r * b_stride, heads)
        for h in range(heads):
            speed = math.exp(float(rate[h]))
            strength[h] = sigmoid32(raw[h])
            for i in range(dim):
                x = speed * float(source[h * dim + i] + shift[h * dim + i])
                keep[h * dim + i] = np.float32(math.exp(bound / (1.0 + math.exp(-x))))
