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


E4M3 = np.array([e4m3_value(code) for code in range(256)])


def random_part(form: Form, rows: int, columns: int, seed: int) -> tuple[Part, np.ndarray]:
    """A part and its values as float64 [rows, columns]."""
    rng = np.random.default_rng(seed)
    if form is Form.F32:
        data = rng.standard_normal((rows, columns)).astype(np.float32)
        return Part(form, data), data.astype(np.float64)
    if form is Form.BF16:
        bits = bf16_bits(rng.standard_normal((rows, columns)))
        return Part(form, bits), bf16_values(bits).astype(np.float64)
    if form is Form.FP8_BLOCK:
        return _random_fp8_block(rng, rows, columns)
    packed = rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    scale = rng.integers(0, 0x60, (rows, columns // 16)).astype(np.uint8)
    multiplier = 0.0137
    codes = np.empty((rows, columns), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    signs = np.where(codes & 8, -1.0, 1.0)
    scales = E4M3[scale].repeat(16, axis=1) * float(np.float32(multiplier))
    return Part(form, packed, scale, multiplier), signs * E2M1[codes & 7] * scales


def _random_fp8_block(rng: np.random.Generator, rows: int, columns: int) -> tuple[Part, np.ndarray]:
    """Every code but NaN; positive scales, one per 128 × 128 values, the last block cut short."""
    codes = rng.integers(0, 127, (rows, columns)).astype(np.uint8)
    codes |= rng.integers(0, 2, codes.shape).astype(np.uint8) << 7
    grid = -(-rows // 128), -(-columns // 128)
    scale = (2.0 ** rng.uniform(-12, -8, grid)).astype(np.float32)
    spread = scale.astype(np.float64).repeat(128, axis=0).repeat(128, axis=1)
    part = Part(Form.FP8_BLOCK, codes, scale, block=(128, 128))
    return part, E4M3[codes] * spread[:rows, :columns]
