"""bf16 in twelve bits, losslessly: exponents of a row are stored relative to the row's own window.

Sixteen values take 24 bytes: sixteen bytes of sign and mantissa, then eight of exponents, two a
byte, the even element in the low half. An exponent of 0 … 14 is above the window's base; 15 says
that the value stands elsewhere. Each row has a header of uint16: base, number of escapes, and
(column, bf16 bits) of each escape, columns ascending. A row with more than MOST_ESCAPES has base
RAW and all its bf16 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels_numba.weights import VECTOR, Form, Part

WINDOW = 15
MOST_ESCAPES = 64
RAW = 0xFFFF
RAW_SHARE = 8
"""A matrix of which more than one row in RAW_SHARE would be raw is better left in bf16."""
MOST_COLUMNS = 1 << 16


def narrow(part: Part) -> Part | None:
    """A BF16 part in BF12; None where that would not be smaller, or K is not whole vectors."""
    bits = part.data
    rows, columns = bits.shape
    if columns % VECTOR or columns > MOST_COLUMNS or not rows:
        return None
    exponents = (bits >> 7 & 0xFF).astype(np.uint8)
    base = _windows(exponents)
    above = exponents.astype(np.int16) - base[:, None]
    escaped = (above < 0) | (above >= WINDOW)
    raw = escaped.sum(axis=1) > MOST_ESCAPES
    if raw.sum() * RAW_SHARE > rows:
        return None
    escaped[raw] = True
    codes = np.where(escaped, WINDOW, above).astype(np.uint8)
    data = np.empty((rows, columns // VECTOR, 24), np.uint8)
    rest = (bits >> 8 & 0x80 | bits & 0x7F).astype(np.uint8)
    data[:, :, :VECTOR] = rest.reshape(rows, -1, VECTOR)
    data[:, :, VECTOR:] = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(rows, -1, VECTOR // 2)
    headers, at = [], np.zeros(rows + 1, np.int64)
    for row in range(rows):
        header = _header(bits[row], int(base[row]), escaped[row], raw=bool(raw[row]))
        headers.append(header)
        at[row + 1] = at[row] + header.nbytes
    return Part(
        Form.BF12,
        data.reshape(rows, -1),
        np.concatenate(headers).view(np.uint8),
        offsets=at[:-1].astype(np.uint32),
    )


def _windows(exponents: npt.NDArray[np.uint8]) -> npt.NDArray[np.int16]:
    """Per row, the base whose window holds the most values; the lowest of equals."""
    rows = exponents.shape[0]
    flat = exponents.astype(np.int64) + 256 * np.arange(rows)[:, None]
    counts = np.bincount(flat.reshape(-1), minlength=256 * rows).reshape(rows, 256)
    sums = np.zeros((rows, 257), np.int64)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    held = sums[:, WINDOW:] - sums[:, : 257 - WINDOW]
    base: npt.NDArray[np.int16] = held.argmax(axis=1).astype(np.int16)
    return base


def _header(
    bits: npt.NDArray[np.uint16], base: int, escaped: npt.NDArray[np.bool_], *, raw: bool
) -> npt.NDArray[np.uint16]:
    if raw:
        return np.concatenate([np.array([RAW, 0], np.uint16), bits])
    columns = np.flatnonzero(escaped)
    header = np.empty(2 + 2 * columns.size, np.uint16)
    header[:2] = base, columns.size
    header[2::2], header[3::2] = columns, bits[columns]
    return header
