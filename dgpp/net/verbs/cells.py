"""The 64 bytes that announce a message or give its slot back, and the hash that proves a payload.

Little-endian: u64 sequence, u64 generation, u64 fold of the payload, u32 length, u32 slot, zeros,
and in the last eight bytes the fold of the rest. A cell whose fold is wrong has not wholly arrived.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CELL_BYTES = 64
WORD_BYTES = 8
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_CELL = struct.Struct("<QQQII")
_SEALED_BYTES = CELL_BYTES - WORD_BYTES

Bytes = npt.NDArray[np.uint8]


class Cell(NamedTuple):
    """`sequence` counts a pool's messages from 1, `generation` collectives; both have 64 bits.
    `fold` and `length` (bytes) are of the payload."""

    sequence: int
    generation: int
    fold: int
    length: int
    slot: int


def fold(data: Bytes) -> int:
    """64-bit hash of uint8 data, filled up with zeros to whole words.

    XOR over words of (word + position + 1) * 9E3779B97F4A7C15: with the position, for equal words
    cancel under XOR alone. The factor is odd, so a single word that differs always shows. What is
    not in a payload's memory yet is what this must notice, not an adversary.
    """
    words = np.zeros(-(-data.size // WORD_BYTES), "<u8")
    words.view(np.uint8)[: data.size] = data
    words += np.arange(1, words.size + 1, dtype=np.uint64)
    words *= _FACTOR
    return int(np.bitwise_xor.reduce(words)) if words.size else 0


def write_cell(target: Bytes, cell: Cell) -> None:
    """Into uint8 [64]."""
    target[:] = 0
    target[: _CELL.size] = np.frombuffer(_CELL.pack(*cell), np.uint8)
    seal = fold(target[:_SEALED_BYTES])
    target[_SEALED_BYTES:] = np.frombuffer(seal.to_bytes(WORD_BYTES, "little"), np.uint8)


def read_cell(source: Bytes) -> Cell | None:
    """What uint8 [64] says, None where nothing has wholly arrived yet."""
    # One copy: the adapter may write while this looks.
    held = source.copy()
    seal = int.from_bytes(held[_SEALED_BYTES:].tobytes(), "little")
    if fold(held[:_SEALED_BYTES]) != seal:
        return None
    return Cell(*_CELL.unpack_from(held.tobytes()))
