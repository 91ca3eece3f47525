"""Codes of values, against a search over every code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_oracles import E2M1, E4M3, bf16_bits, bf16_values

from kernels_numba.cpu.encode import bf16_code, e2m1_code, e4m3_code, e4m3_size, fp8_part
from kernels_numba.weights import Form, Part

FINITE = st.floats(-1e4, 1e4, width=32)


def nearest(x: float, table: np.ndarray) -> int:
    """The code of ascending `table` nearest to |x|, of two equally near the even one; the sign."""
    gaps = np.abs(table - min(abs(x), table[-1]))
    best = np.flatnonzero(gaps == gaps.min())
    return int(best[best % 2 == 0][0] if len(best) > 1 else best[0])


def e4m3_oracle(x: np.float32) -> int:
    return nearest(float(x), E4M3[:127]) | 128 * bool(np.signbit(x))


@settings(deadline=None, max_examples=150)
@given(x=FINITE | st.sampled_from([*map(float, E4M3[:127]), 447.0, 463.9, 500.0, 2.0**-10]))
def test_the_nearest_e4m3_and_e2m1(x: float) -> None:
    value = np.float32(x)
    assert e4m3_code(value) == e4m3_oracle(value)
    assert e2m1_code(value) & 7 == nearest(float(value), E2M1)
    assert (e2m1_code(value) & 8 != 0) == (x < 0)


def test_halves_between_codes_go_to_the_even_one() -> None:
    middles = (E4M3[:126] + E4M3[1:127]) / 2
    for value in middles.astype(np.float32):
        assert e4m3_code(value) == e4m3_oracle(value)
        assert e4m3_code(value) % 2 == 0
    for value in (E2M1[:-1] + E2M1[1:]) / 2:
        assert e2m1_code(np.float32(value)) % 2 == 0


def test_codes_say_what_they_are() -> None:
    for code in range(127):
        assert e4m3_size(code) == np.float32(E4M3[code])
        assert e4m3_code(np.float32(-E4M3[code])) == code | 128


@settings(deadline=None, max_examples=100)
@given(x=FINITE | st.sampled_from([1.00390625, 1.01171875, -3.0e38]))
def test_the_nearest_bf16(x: float) -> None:
    code = bf16_code(np.float32(x))
    around = bf16_values(np.array([max(code - 1, 0), code, code + 1], np.uint16)).astype(np.float64)
    gaps = np.abs(around[np.isfinite(around)] - np.float64(np.float32(x)))
    assert (
        abs(bf16_values(np.array([code], np.uint16))[0] - np.float64(np.float32(x))) == gaps.min()
    )


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (130, 300), (5, 16), (257, 64)])
def test_a_matrix_in_blocks(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    bits = bf16_bits(rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-3, 3))
    bits[:2, :3] = 0
    part = fp8_part(Part(Form.BF16, bits))
    values = bf16_values(bits).astype(np.float32)
    for r in range(0, rows, 128):
        for c in range(0, columns, 128):
            block = values[r : r + 128, c : c + 128]
            scale = np.float32(np.abs(block).max() / np.float32(448))
            assert part.scale[r // 128, c // 128] == scale
            wanted = [e4m3_oracle(value) for value in (block / scale).reshape(-1)[:200]]
            got = part.data[r : r + 128, c : c + 128].reshape(-1)[:200]
            np.testing.assert_array_equal(got, wanted)
    zero = fp8_part(Part(Form.BF16, np.zeros((3, 32), np.uint16)))
    assert zero.scale.tolist() == [[1.0]]
    assert not zero.data.any()
