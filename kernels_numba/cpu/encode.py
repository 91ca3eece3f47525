"""Values to codes, the nearest one and of two the even one: e4m3, e2m1, bf16; whole matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels_numba.cpu.pointers import view_f32, view_u8, view_u16
from kernels_numba.cpu.scalar import bits_of_float, float_of_bits
from kernels_numba.jit import kernel, prange
from kernels_numba.weights import FP8_BLOCK_ROWS, Form, Part

E4M3_MOST = np.float32(448.0)
E2M1_MOST = np.float32(6.0)
_LEAST_NORMAL = np.float32(0.015625)
_PER_SUBNORMAL = np.float32(512.0)
_ROUND = np.float32(12582912.0)
"""1.5 · 2^23: adding and subtracting it rounds to the nearest integer, ties to even."""


@kernel(inline=True)
def e4m3_code(x: np.float32) -> int:
    """The e4m3 code nearest to x; ±448 beyond them."""
    bits = np.int64(bits_of_float(x))
    sign = bits >> 24 & 0x80
    size = np.float32(min(abs(x), E4M3_MOST))
    if size < _LEAST_NORMAL:
        return int(sign | np.int64((size * _PER_SUBNORMAL + _ROUND) - _ROUND))
    held = np.int64(bits_of_float(size))
    # Twenty bits of mantissa go; exponents are 120 less.
    rounded = (held + 0x7FFFF + (held >> 20 & 1)) >> 20
    return int(sign | (rounded - (120 << 3)))


@kernel(inline=True)
def e4m3_size(code: int) -> np.float32:
    """The value of an e4m3 code without its sign bit."""
    exponent = code >> 3
    if exponent == 0:
        return np.float32(np.float32(code) / _PER_SUBNORMAL)
    return np.float32(float_of_bits(np.int32((exponent + 120) << 23 | (code & 7) << 20)))


@kernel(inline=True)
def e2m1_code(x: np.float32) -> int:
    """The e2m1 code nearest to x; ±6 beyond them."""
    size = abs(x)
    code = int(size > np.float32(0.25)) + int(size >= np.float32(0.75))
    code += int(size > np.float32(1.25)) + int(size >= np.float32(1.75))
    code += int(size > np.float32(2.5)) + int(size >= np.float32(3.5))
    code += int(size > np.float32(5.0))
    return 8 | code if x < np.float32(0.0) else code


@kernel(inline=True)
def bf16_code(x: np.float32) -> int:
    """The bits of the bf16 nearest to x, which is finite."""
    bits = np.int64(bits_of_float(x)) & 0xFFFFFFFF
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


@kernel(inline=True)
def of_bf16(bits: int) -> np.float32:
    """The value of bf16 bits."""
    return np.float32(float_of_bits(np.int32(np.uint32(bits) << np.uint32(16))))


@kernel()
def _fp8_block(
    bits: int, stride: int, rows: int, columns: int, codes: int, code_stride: int, scale: int
) -> None:  # fmt: skip
    """One block: scale = max |x| / 448 (1 where that is 0), codes of x / scale."""
    most = np.float32(0.0)
    for r in range(rows):
        held = view_u16(bits + r * stride, columns)
        for c in range(columns):
            most = max(most, abs(of_bf16(held[c])))
    factor = np.float32(most / E4M3_MOST) if most > 0 else np.float32(1.0)
    view_f32(scale, 1)[0] = factor
    for r in range(rows):
        held = view_u16(bits + r * stride, columns)
        out = view_u8(codes + r * code_stride, columns)
        for c in range(columns):
            out[c] = e4m3_code(np.float32(of_bf16(held[c]) / factor))


@kernel(parallel=True)
def _fp8_blocks(
    bits: int, stride: int, rows: int, columns: int, block: int, codes: int, code_stride: int,
    scales: int, scale_stride: int,
) -> None:  # fmt: skip
    wide = (columns + block - 1) // block
    for task in prange((rows + block - 1) // block * wide):
        r = task // wide * block
        c = task % wide * block
        _fp8_block(bits + r * stride + 2 * c, stride, min(block, rows - r),
                   min(block, columns - c), codes + r * code_stride + c, code_stride,
                   scales + task // wide * scale_stride + 4 * (task % wide))  # fmt: skip


def fp8_part(part: Part) -> Part:
    """A BF16 part as FP8_BLOCK over 128 × 128 values, beginning at the part's own first."""
    block = FP8_BLOCK_ROWS
    bits: npt.NDArray[np.uint16] = part.data
    if bits.strides[1] != bits.itemsize:
        bits = np.ascontiguousarray(bits)
    rows, columns = bits.shape
    codes = np.empty((rows, columns), np.uint8)
    scales = np.empty((-(-rows // block), -(-columns // block)), np.float32)
    _fp8_blocks(
        int(bits.ctypes.data), int(bits.strides[0]), rows, columns, block,
        int(codes.ctypes.data), columns, int(scales.ctypes.data), int(scales.strides[0]),
    )  # fmt: skip
    return Part(Form.FP8_BLOCK, codes, scales, block=(block, block))
