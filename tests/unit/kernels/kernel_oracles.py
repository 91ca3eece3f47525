"""Random weights of each form and the values they stand for, decoded independently.

Rows are multiples of bf16's steps: a backend with bf16 activations gets what the oracle gets.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.weights import Form, Part

CAPACITY = 150
EXACT, NARROW = 2e-5, 1e-2
"""Errors relative to the largest value: float32 sums; bf16 somewhere on the way."""


def bf16_bits(values: np.ndarray) -> np.ndarray:
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_rows(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return bf16_values(bf16_bits(rng.standard_normal(shape)))


def rows_of(backend, count):
    """Rows 0 … count − 1 of some step, sent."""
    rows = backend.rows(2, 4)
    rows.count = count
    backend.begin(rows)
    return rows


def tensor_of(backend, values, *, wide=False):
    tensor = backend.tensor(values.shape[1], wide=wide)
    backend.write(tensor, values.astype(np.float32))
    return tensor


def close(backend, got, wanted, narrow=NARROW):
    """Near in float32; on a bf16 backend within `narrow` of the largest value."""
    error = EXACT if backend.name == "cpu" else narrow
    np.testing.assert_allclose(got, wanted, rtol=error, atol=error * np.abs(wanted).max())


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)


def e4m3_value(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


def random_part(form: Form, rows: int, columns: int, seed: int) -> tuple[Part, np.ndarray]:
    """A part and its values as float64 [rows, columns]."""
    rng = np.random.default_rng(seed)
    if form is Form.F32:
        data = rng.standard_normal((rows, columns)).astype(np.float32)
        return Part(form, data), data.astype(np.float64)
    if form is Form.BF16:
        bits = bf16_bits(rng.standard_normal((rows, columns)))
        return Part(form, bits), bf16_values(bits).astype(np.float64)
    packed = rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    scale = rng.integers(0, 0x60, (rows, columns // 16)).astype(np.uint8)
    multiplier = 0.0137
    codes = np.empty((rows, columns), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    signs = np.where(codes & 8, -1.0, 1.0)
    scales = np.vectorize(e4m3_value)(scale.astype(int)).repeat(16, axis=1) * float(
        np.float32(multiplier)
    )
    return Part(form, packed, scale, multiplier), signs * E2M1[codes & 7] * scales
