"""Random weights of each form and the values they stand for, decoded independently.

Rows are multiples of bf16's steps: a backend with bf16 activations gets what the oracle gets.
"""

from __future__ import annotations

import os

import numpy as np

from kernels_numba.cpu.narrow import narrow
from kernels_numba.weights import LAYOUTS, Form, Part

CAPACITY = 150
EMULATED = os.environ.get("DGPP_TEST_EMULATED") == "1"
MANY_ROWS = 600 if EMULATED else 10_000
"""Rows of weights that fill any device; an emulated one is small."""
HEAD_DIMS = [16, 64, 192] if EMULATED else [16, 24, 64, 128, 192]
"""Narrow and wide heads, padded and whole ones."""
SOME_ROWS = range(0, CAPACITY, 6)
"""Rows computed alone too, where all are compared in batches of every size."""
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


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Half-split rotation of the leading values of each head by `angles` [..., rotated / 2]."""
    half = angles.shape[-1]
    out = x.copy()
    a, b = x[..., :half], x[..., half : 2 * half]
    cos, sin = np.cos(angles), np.sin(angles)
    out[..., :half], out[..., half : 2 * half] = a * cos - b * sin, b * cos + a * sin
    return out


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)


def e4m3_value(code: int) -> float:
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


E4M3 = np.array([e4m3_value(code) for code in range(256)])


def codes_of(packed: np.ndarray) -> np.ndarray:
    """Four-bit codes, the low half of a byte first."""
    codes = np.empty((packed.shape[0], 2 * packed.shape[1]), np.int64)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    return codes


def e2m1_of(packed: np.ndarray) -> np.ndarray:
    codes = codes_of(packed)
    return np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]


def random_e4m3(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Every code but NaN."""
    codes = rng.integers(0, 127, (rows, columns)).astype(np.uint8)
    return codes | rng.integers(0, 2, codes.shape).astype(np.uint8) << 7


def whole_groups(form: Form, columns: int) -> int:
    """`columns` rounded up to whole groups of scales, where a form has no other rows."""
    group = 1 if LAYOUTS[form].grid else max(1, LAYOUTS[form].group)
    return -(-columns // group) * group


def random_part(form: Form, rows: int, columns: int, seed: int) -> tuple[Part, np.ndarray]:
    """A part and its values as float64 [rows, columns]."""
    return _MAKERS[form](np.random.default_rng(seed), rows, columns)


def _f32(rng, rows, columns):
    data = rng.standard_normal((rows, columns)).astype(np.float32)
    return Part(Form.F32, data), data.astype(np.float64)


def _bf16(rng, rows, columns):
    bits = bf16_bits(rng.standard_normal((rows, columns)))
    return Part(Form.BF16, bits), bf16_values(bits).astype(np.float64)


def _bf12(rng, rows, columns):
    """Some values outside the window of their row, and a row that has none."""
    bits = bf16_bits(rng.standard_normal((rows, columns)))
    bits[rng.random(bits.shape) < 0.01] = 0
    bits[2] = bf16_bits(2.0 ** rng.uniform(-30, 0, columns))
    bits[2, ::2] = 0x8000
    part = narrow(Part(Form.BF16, bits))
    assert part is not None
    return part, bf16_values(bits).astype(np.float64)


def _nvfp4(rng, rows, columns):
    packed = rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    scale = rng.integers(0, 0x60, (rows, columns // 16)).astype(np.uint8)
    scales = E4M3[scale].repeat(16, axis=1) * float(np.float32(0.0137))
    return Part(Form.NVFP4, packed, scale, 0.0137), e2m1_of(packed) * scales


def _fp8_block(rng, rows, columns):
    """The last block of rows and of columns is cut short."""
    codes = random_e4m3(rng, rows, columns)
    grid = -(-rows // 128), -(-columns // 128)
    scale = (2.0 ** rng.uniform(-12, -8, grid)).astype(np.float32)
    spread = scale.astype(np.float64).repeat(128, axis=0).repeat(128, axis=1)
    part = Part(Form.FP8_BLOCK, codes, scale, block=(128, 128))
    return part, E4M3[codes] * spread[:rows, :columns]


def _fp8_channel(rng, rows, columns):
    codes = random_e4m3(rng, rows, columns)
    scale = (2.0 ** rng.uniform(-12, -8, (rows, 1))).astype(np.float32)
    return Part(Form.FP8_CHANNEL, codes, scale), E4M3[codes] * scale.astype(np.float64)


def _mxfp4(rng, rows, columns):
    packed = rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
    scale = rng.integers(118, 128, (rows, columns // 32)).astype(np.uint8)
    scales = 2.0 ** (scale.astype(np.float64) - 127)
    return Part(Form.MXFP4, packed, scale), e2m1_of(packed) * scales.repeat(32, axis=1)


def _mxfp8(rng, rows, columns):
    codes = random_e4m3(rng, rows, columns)
    scale = rng.integers(112, 122, (rows, columns // 32)).astype(np.uint8)
    scales = 2.0 ** (scale.astype(np.float64) - 127)
    return Part(Form.MXFP8, codes, scale), E4M3[codes] * scales.repeat(32, axis=1)


def _integers(form, bits, group):
    def make(rng, rows, columns):
        data = rng.integers(0, 256, (rows, columns * bits // 8)).astype(np.uint8)
        codes = codes_of(data) if bits == 4 else data.astype(np.int64)
        values = (2.0 ** rng.uniform(-10, -6, (rows, columns // group))).astype(np.float32)
        if group == 64:
            scale = bf16_bits(values)
            values = bf16_values(scale)
        else:
            scale = values.astype(np.float16)
            values = scale
        spread = values.astype(np.float64).repeat(group, axis=1)
        return Part(form, data, scale), (codes - 2 ** (bits - 1)) * spread

    return make


_MAKERS = {
    Form.F32: _f32,
    Form.BF16: _bf16,
    Form.NVFP4: _nvfp4,
    Form.BF12: _bf12,
    Form.FP8_BLOCK: _fp8_block,
    Form.FP8_CHANNEL: _fp8_channel,
    Form.MXFP4: _mxfp4,
    Form.MXFP8: _mxfp8,
    Form.INT4_G64: _integers(Form.INT4_G64, 4, 64),
    Form.INT8_G64: _integers(Form.INT8_G64, 8, 64),
    Form.INT4_G128: _integers(Form.INT4_G128, 4, 128),
    Form.INT8_G128: _integers(Form.INT8_G128, 8, 128),
}
