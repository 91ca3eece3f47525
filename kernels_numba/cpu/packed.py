"""Rows of cached context in a byte or half a byte a value: packed when kept, unpacked when read."""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.dot import row_address, widen_row
from kernels_numba.cpu.encode import (
    E2M1_MOST,
    E4M3_MOST,
    bf16_code,
    e2m1_code,
    e4m3_code,
    e4m3_size,
    of_bf16,
)
from kernels_numba.cpu.memory import padded
from kernels_numba.cpu.pointers import view_f32, view_i32, view_i64, view_u8, view_u16
from kernels_numba.jit import kernel, prange
from kernels_numba.packed_rows import FP4_GROUP, PackedRow, RowCode
from kernels_numba.weights import Form

FP8 = int(RowCode.FP8)
_CODE, _CODED, _PLAIN, _PADDED, _WIDEN, _SCALE, _FACTOR, _PLAIN_AT = range(8)
_FIELDS = 8
_FORMS = {RowCode.FP8: Form.FP8_CHANNEL, RowCode.FP4: Form.NVFP4}
"""The forms of weights whose readers read the codes of a row."""


class Packing:
    """A row's layout as kernels take it: `address` of int64 fields, 0 where rows are float32."""

    def __init__(self, row: PackedRow) -> None:
        self.row = row
        self.address = 0
        if row.code is RowCode.FLOAT:
            self.line = 4 * padded(row.width)
            return
        self.line = row.bytes
        fields = [
            row.code, row.coded, row.plain, padded(row.width), row_address(_FORMS[row.code]),
            row.scale_at, row.factor_at, row.plain_at,
        ]  # fmt: skip
        self._fields = np.array(fields, np.int64)
        self.address = int(self._fields.ctypes.data)


@kernel(inline=True)
def _most(x: int, count: int) -> np.float32:
    value = view_f32(x, count)
    most = np.float32(0.0)
    for i in range(count):
        most = max(most, np.float32(abs(value[i])))
    return most


@kernel()
def _pack_fp8(x: int, coded: int, out: int, scale_at: int) -> None:
    most = _most(x, coded)
    scale = np.float32(most / E4M3_MOST) if most > 0 else np.float32(1.0)
    value = view_f32(x, coded)
    codes = view_u8(out, scale_at)
    for i in range(coded):
        codes[i] = e4m3_code(np.float32(value[i] / scale))
    for i in range(coded, scale_at):
        codes[i] = 0
    view_f32(out + scale_at, 1)[0] = scale


@kernel()
def _pack_fp4(x: int, coded: int, out: int, scale_at: int, factor_at: int) -> None:
    most = _most(x, coded)
    factor = np.float32(most / np.float32(E2M1_MOST * E4M3_MOST)) if most > 0 else np.float32(1.0)
    view_f32(out + factor_at, 1)[0] = factor
    value = view_f32(x, coded)
    codes = view_u8(out, scale_at)
    scales = view_u8(out + scale_at, factor_at - scale_at)
    for first in range(0, coded, FP4_GROUP):
        count = min(FP4_GROUP, coded - first)
        peak = _most(x + 4 * first, count)
        code = e4m3_code(np.float32(peak / np.float32(E2M1_MOST * factor)))
        scales[first // FP4_GROUP] = code
        scale = np.float32(e4m3_size(code) * factor)
        for i in range(first, first + FP4_GROUP, 2):
            low = 0
            high = 0
            if scale > 0:
                if i < first + count:
                    low = e2m1_code(np.float32(value[i] / scale))
                if i + 1 < first + count:
                    high = e2m1_code(np.float32(value[i + 1] / scale))
            codes[i // 2] = low | high << 4


@kernel()
def pack_row(packing: int, x: int, out: int) -> None:
    """The float32 row at `x` as the bytes of a packed row."""
    field = view_i64(packing, _FIELDS)
    coded = field[_CODED]
    if field[_CODE] == FP8:
        _pack_fp8(x, coded, out, field[_SCALE])
    else:
        _pack_fp4(x, coded, out, field[_SCALE], field[_FACTOR])
    plain = field[_PLAIN]
    value = view_f32(x + 4 * coded, plain)
    bits = view_u16(out + field[_PLAIN_AT], plain)
    for i in range(plain):
        bits[i] = bf16_code(value[i])


@kernel()
def unpack_row(packing: int, row: int, out: int) -> None:
    """out[0 … padded width − 1] = the packed row at `row`, 0 beyond its width."""
    field = view_i64(packing, _FIELDS)
    coded = field[_CODED]
    plain = field[_PLAIN]
    value = view_f32(out, field[_PADDED])
    widen_row(field[_WIDEN], row, row + field[_SCALE], row + field[_FACTOR],
              (coded + 15) // 16 * 16, out)  # fmt: skip
    bits = view_u16(row + field[_PLAIN_AT], plain)
    for i in range(plain):
        value[coded + i] = of_bf16(bits[i])
    for i in range(coded + plain, field[_PADDED]):
        value[i] = np.float32(0.0)


@kernel()
def unpack_rows(packing: int, rows: int, line: int, count: int, out: int, out_line: int) -> None:
    """`count` rows that lie `line` bytes apart."""
    for i in range(count):
        unpack_row(packing, rows + i * line, out + i * out_line)


@kernel(parallel=True)
def store_packed(
    x: int, x_stride: int, rows: int, positions: int, slots: int, tables: int, table_width: int,
    every: int, block_rows: int, store: int, line: int, packing: int,
) -> None:  # fmt: skip
    """Row r, if it is the last of a group of `every`, to the group's place in its slot's blocks."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        if (position + 1) % every == 0:
            group = position // every
            entry = view_i32(slots, rows)[r] * table_width + group // block_rows
            block = view_i32(tables, entry + 1)[entry]
            pack_row(packing, x + r * x_stride,
                     store + (block * block_rows + group % block_rows) * line)  # fmt: skip


@kernel(parallel=True)
def store_heads(
    kv: int, kv_stride: int, rows: int, positions: int, slots: int, tables: int, table_width: int,
    kv_heads: int, width: int, block_tokens: int, plane: int, line: int, packing: int,
) -> None:  # fmt: skip
    """Heads of row r, `width` values apart, to the lines of its position in a plane."""
    for r in prange(rows):
        position = view_i32(positions, rows)[r]
        entry = view_i32(slots, rows)[r] * table_width + position // block_tokens
        block = view_i32(tables, entry + 1)[entry]
        for h in range(kv_heads):
            place = (block * kv_heads + h) * block_tokens + position % block_tokens
            pack_row(packing, kv + r * kv_stride + 4 * h * width, plane + place * line)
