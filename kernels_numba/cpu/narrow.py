"""bf16 matrices to BF12 (`kernels_numba.bf12` has the layout), rows side by side."""

from __future__ import annotations

import numpy as np

from kernels_numba.bf12 import MOST_COLUMNS, MOST_ESCAPES, RAW, RAW_SHARE, WINDOW
from kernels_numba.cpu.pointers import view_i32, view_i64, view_u8, view_u16
from kernels_numba.jit import kernel, prange
from kernels_numba.weights import VECTOR, Form, Part

_EXPONENTS = 256


@kernel()
def _window(bits: int, columns: int, found: int) -> None:
    """found int32 [2] = the base whose window holds the most values, the lowest of equals; how many
    values it does not hold."""
    value = view_u16(bits, columns)
    counts = np.zeros(_EXPONENTS, np.int32)
    for k in range(columns):
        counts[value[k] >> 7 & 0xFF] += 1
    held = 0
    for exponent in range(WINDOW):
        held += counts[exponent]
    best = held
    base = 0
    for first in range(1, _EXPONENTS - WINDOW + 1):
        held += counts[first + WINDOW - 1] - counts[first - 1]
        if held > best:
            best = held
            base = first
    out = view_i32(found, 2)
    out[0] = base
    out[1] = columns - best


@kernel(parallel=True)
def _windows(bits: int, stride: int, rows: int, columns: int, found: int) -> None:
    for r in prange(rows):
        _window(bits + r * stride, columns, found + 8 * r)


@kernel()
def _pack(bits: int, columns: int, base: int, raw: int, out: int, header: int) -> None:
    """A row's sixteens of [rests | pairs of exponents], and its header."""
    value = view_u16(bits, columns)
    head = view_u16(header, 2 + (columns if raw != 0 else 2 * MOST_ESCAPES))
    head[0] = RAW if raw != 0 else base
    at = 2
    for first in range(0, columns, VECTOR):
        place = out + first // VECTOR * (VECTOR + VECTOR // 2)
        rest = view_u8(place, VECTOR)
        pair = view_u8(place + VECTOR, VECTOR // 2)
        for i in range(VECTOR):
            held = int(value[first + i])
            code = (held >> 7 & 0xFF) - base
            if raw != 0:
                code = WINDOW
                head[2 + first + i] = held
            elif code < 0 or code >= WINDOW:
                code = WINDOW
                head[at] = first + i
                head[at + 1] = held
                at += 2
            rest[i] = held >> 8 & 0x80 | held & 0x7F
            if i % 2 == 0:
                pair[i // 2] = code
            else:
                pair[i // 2] = pair[i // 2] | code << 4
    head[1] = 0 if raw != 0 else (at - 2) // 2


@kernel(parallel=True)
def _pack_rows(
    bits: int, stride: int, rows: int, columns: int, found: int, out: int, out_stride: int,
    headers: int, offsets: int,
) -> None:  # fmt: skip
    for r in prange(rows):
        window = view_i32(found + 8 * r, 2)
        _pack(bits + r * stride, columns, window[0], int(window[1] > MOST_ESCAPES),
              out + r * out_stride, headers + view_i64(offsets, rows)[r])  # fmt: skip


def narrow(part: Part) -> Part | None:
    """A BF16 part in BF12; None where that would not be smaller, or K is not whole vectors."""
    bits = part.data
    rows, columns = bits.shape
    if columns % VECTOR or columns > MOST_COLUMNS or not rows:
        return None
    if bits.strides[1] != bits.itemsize:
        bits = np.ascontiguousarray(bits)
    source = (int(bits.ctypes.data), int(bits.strides[0]), rows, columns)
    found = np.empty((rows, 2), np.int32)
    _windows(*source, int(found.ctypes.data))
    raw = found[:, 1] > MOST_ESCAPES
    if raw.sum() * RAW_SHARE > rows:
        return None
    lengths = 2 * np.where(raw, 2 + columns, 2 + 2 * found[:, 1].astype(np.int64))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    headers = np.empty(int(offsets[-1]), np.uint8)
    data = np.empty((rows, columns // VECTOR * (VECTOR + VECTOR // 2)), np.uint8)
    _pack_rows(
        *source, int(found.ctypes.data), int(data.ctypes.data), int(data.strides[0]),
        int(headers.ctypes.data), int(offsets.ctypes.data),
    )  # fmt: skip
    return Part(Form.BF12, data, headers, offsets=offsets[:-1].astype(np.uint32))
