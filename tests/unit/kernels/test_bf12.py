"""Twelve-bit bf16 gives every bit back, and every product bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracles import bf16_bits, bf16_rows, bf16_values, rows_of, tensor_of

from kernels_numba.bf12 import MOST_ESCAPES, RAW
from kernels_numba.cpu.narrow import narrow
from kernels_numba.weights import Form, Part


def decode(part: Part) -> np.ndarray:
    """bf16 bits, from the description of the layout."""
    rows, columns = part.rows, part.columns
    out = np.zeros((rows, columns), np.uint16)
    headers = part.scale.view(np.uint16)
    for n in range(rows):
        at = int(part.offsets[n]) // 2
        if headers[at] == RAW:
            out[n] = headers[at + 2 : at + 2 + columns]
            continue
        for k in range(columns):
            unit = part.data[n, 24 * (k // 16) : 24 * (k // 16) + 24]
            rest, pair = int(unit[k % 16]), int(unit[16 + k % 16 // 2])
            exponent = int(headers[at]) + (pair >> 4 if k % 2 else pair & 15)
            out[n, k] = (rest & 0x80) << 8 | exponent << 7 & 0x7F80 | rest & 0x7F
        for escape in range(headers[at + 1]):
            column, bits = headers[at + 2 + 2 * escape : at + 4 + 2 * escape]
            out[n, column] = bits
    return out


ROWS = st.integers(1, 9)
SPREADS = st.sampled_from([0.5, 3.0, 40.0])


@settings(deadline=None, max_examples=40)
@given(rows=ROWS, vectors=st.integers(1, 12), spread=SPREADS, seed=st.integers(0, 99))
def test_every_bit_comes_back(rows, vectors, spread, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (rows, 16 * vectors)
    power = rng.normal(0, spread, (rows, 1)) + rng.normal(0, spread, shape) * (
        rng.random(shape) < 0.02
    )
    bits = bf16_bits(rng.standard_normal(shape) * 2.0 ** power.clip(-120, 120))
    bits[rng.random(bits.shape) < 0.01] = rng.choice([0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 1])
    part = narrow(Part(Form.BF16, bits))
    assert part is not None
    assert (part.form, part.rows, part.columns) == (Form.BF12, *bits.shape)
    np.testing.assert_array_equal(decode(part), bits)


def test_a_matrix_of_scattered_exponents_stays_in_bf16() -> None:
    bits = np.random.default_rng(3).integers(0, 0x7F00, (16, 256)).astype(np.uint16)
    assert narrow(Part(Form.BF16, bits)) is None
    bits[2:] = 0x3F80
    half = narrow(Part(Form.BF16, bits))
    assert half is not None
    np.testing.assert_array_equal(decode(half), bits)


def test_a_row_of_a_few_too_many_escapes_is_raw() -> None:
    bits = np.full((8, 256), 0x3F80, np.uint16)
    bits[1, :MOST_ESCAPES] = 0
    bits[5, : MOST_ESCAPES + 1] = 0
    part = narrow(Part(Form.BF16, bits))
    headers = part.scale.view(np.uint16)
    assert [int(headers[at // 2]) == RAW for at in part.offsets] == [n == 5 for n in range(8)]


@pytest.mark.parametrize("columns", [1, 24, 40])
def test_rows_of_no_whole_vectors_stay_in_bf16(columns) -> None:
    assert narrow(Part(Form.BF16, np.ones((4, columns), np.uint16))) is None


@pytest.mark.parametrize("count", [1, 5, 12, 100])
def test_a_product_has_the_bits_of_the_bf16_one(backend, count) -> None:
    if backend.name != "cpu":
        pytest.skip("the CUDA backend has no BF12 matrices")
    rng = np.random.default_rng(7)
    bits = bf16_bits(rng.standard_normal((90, 640)))
    bits[rng.random(bits.shape) < 0.02] = 0
    bits[4] = bf16_bits(2.0 ** rng.uniform(-60, 0, 640))
    wide = Part(Form.BF16, bits)
    small = narrow(wide)
    assert small is not None
    x = tensor_of(backend, bf16_rows(rng, count, 640))
    got = []
    for part in (wide, small):
        out = backend.tensor(90, wide=True)
        backend.linear(rows_of(backend, count), x, backend.matrix([part]), out)
        got.append(backend.read(out, count))
    np.testing.assert_array_equal(got[1], got[0])
    assert np.isfinite(bf16_values(bits)).all()
