"""Values rounded to what a narrower cache keeps of them, and the rotation that evens them out."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.pointers import view_f32
from kernels_numba.cpu.scalar import bits_of_float, float_of_bits
from kernels_numba.extended import Code
from kernels_numba.jit import kernel, prange

FP8_E8M0, FP4_E8M0, FP4_E4M3 = int(Code.FP8_E8M0), int(Code.FP4_E8M0), int(Code.FP4_E4M3)
# Adding and subtracting 1.5 · 2^23 rounds to the nearest integer, ties to even.
_ROUND = np.float32(12582912.0)
_E4M3_TOP, _E2M1_TOP = np.float32(448.0), np.float32(6.0)
_LEAST_FP8, _LEAST_FP4 = np.float32(1e-4), np.float32(6.0 * 2.0**-126)
_LEAST_E4M3 = np.float32(6.0 * 2.0**-9)


@kernel(inline=True)
def _power(exponent: int) -> np.float32:
    """2 ** exponent, of a normal number."""
    return np.float32(float_of_bits(np.int32((exponent + 127) << 23)))


@kernel(inline=True)
def _exponent(x: np.float32) -> int:
    """⌊log2 |x|⌋ of a normal number."""
    return (int(bits_of_float(x)) >> 23 & 255) - 127


@kernel()
def _nearest(x: np.float32, mantissa: int, least: int, top: np.float32) -> np.float32:
    """The nearest number of `mantissa` bits after the point, exponents from `least` on, and at most
    `top`; ties to the even code."""
    step = max(_exponent(x), least) - mantissa
    rounded = np.float32((x * _power(-step) + _ROUND - _ROUND) * _power(step))
    return np.float32(min(max(rounded, -top), top))


@kernel()
def _power_above(x: np.float32) -> np.float32:
    """The least power of two that is not below x > 0."""
    bits = int(bits_of_float(x))
    return _power((bits >> 23) - 127 + (1 if bits & 0x7FFFFF else 0))


@kernel()
def _round_block(x: int, count: int, code: int) -> None:
    value = view_f32(x, count)
    most = np.float32(0.0)
    for i in range(count):
        most = max(most, np.float32(abs(value[i])))
    if code == FP8_E8M0:
        scale = _power_above(np.float32(max(most, _LEAST_FP8) / _E4M3_TOP))
    elif code == FP4_E8M0:
        scale = _power_above(np.float32(max(most, _LEAST_FP4) / _E2M1_TOP))
    else:
        scale = _nearest(np.float32(max(most, _LEAST_E4M3) / _E2M1_TOP), 3, -6, _E4M3_TOP)
    for i in range(count):
        part = np.float32(value[i] / scale)
        if code == FP8_E8M0:
            value[i] = _nearest(part, 3, -6, _E4M3_TOP) * scale
        else:
            value[i] = _nearest(part, 1, 0, _E2M1_TOP) * scale


@kernel(parallel=True)
def round_rows(x: int, x_stride: int, rows: int, code: int, width: int, block: int) -> None:
    """The first `width` values of each row, `block` at a time, to what `code` keeps of them."""
    for r in prange(rows):
        for first in range(0, width, block):
            _round_block(x + r * x_stride + 4 * first, min(block, width - first), code)


@kernel()
def _transform(x: int, width: int) -> None:
    value = view_f32(x, width)
    half = 1
    while half < width:
        for first in range(0, width, 2 * half):
            for i in range(first, first + half):
                a = value[i]
                b = value[i + half]
                value[i] = a + b
                value[i + half] = a - b
        half *= 2
    factor = np.float32(1.0 / np.sqrt(float(width)))
    for i in range(width):
        value[i] = value[i] * factor


@kernel(parallel=True)
def hadamard(x: int, x_stride: int, rows: int, heads: int, width: int) -> None:
    """Each head times the Hadamard matrix of `width`, a power of two, divided by its root."""
    for r in prange(rows):
        for h in range(heads):
            _transform(x + r * x_stride + 4 * h * width, width)
