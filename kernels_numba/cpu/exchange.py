"""How ranks of one host meet in shared memory: rows out, generations, rank-ordered sums in.

Each rank owns a line of words and two slots of data, used in turn. A rank writes its part of
collective g into slot g mod 2 and publishes g. Whoever has all parts of g knows that every rank
has left g − 1, so no slot is overwritten while somebody reads it.

A sum starts with rank 0's value and adds the others in rank order, in float32, one element at a
time: its bits are the same on all ranks and depend on no other element.
"""

from __future__ import annotations

import numpy as np

from kernels_numba.cpu.atomics import (
    add_i32,
    full_fence,
    load_acquire,
    load_i32,
    pause,
    store_release,
)
from kernels_numba.cpu.pointers import view_f32, view_i64, view_u16
from kernels_numba.cpu.rows import copy_row
from kernels_numba.cpu.scalar import bits_of_float, float_of_bits
from kernels_numba.jit import kernel
from kernels_numba.meeting import F32_WIRE, GENERATION, LINE_BYTES, SLEEPERS, TAGS


@kernel(inline=True)
def round_bf16(value: np.float32) -> np.uint16:
    """bf16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.int64(bits_of_float(value)) & np.int64(0xFFFFFFFF)
    rounded = (bits + np.int64(0x7FFF) + ((bits >> np.int64(16)) & np.int64(1))) >> np.int64(16)
    quiet = (bits >> np.int64(16)) | np.int64(0x40)
    is_nan = (bits & np.int64(0x7FFFFFFF)) > np.int64(0x7F800000)
    return np.uint16(quiet if is_nan else rounded)


@kernel(inline=True)
def widen_bf16_value(bits: np.uint16) -> np.float32:
    return np.float32(float_of_bits(np.int32(np.int32(bits) << np.int32(16))))


@kernel()
def publish(line: int, tag: int, generation: int) -> int:
    """Announce that this rank's part of `generation` is written; how many ranks sleep on it."""
    store_release(line + TAGS + 8 * (generation & 1), tag)
    store_release(line + GENERATION, generation)
    # A sleeper adds itself and then looks at the generation: one of the two sees the other.
    full_fence()
    return int(load_i32(line + SLEEPERS))


@kernel()
def missing(lines: int, world: int, generation: int, spins: int) -> int:
    """The first rank that has not published `generation` after `spins` looks, -1 for none."""
    left = spins
    for rank in range(world):
        while load_acquire(lines + rank * LINE_BYTES + GENERATION) < generation:
            if left <= 0:
                return rank
            left -= 1
            pause()
    return -1


@kernel()
def lie_down(line: int) -> int:
    """Count the caller among the sleepers on `line`; the generation seen after that."""
    add_i32(line + SLEEPERS, np.int32(1))
    full_fence()
    return int(load_acquire(line + GENERATION))


@kernel()
def get_up(line: int) -> None:
    add_i32(line + SLEEPERS, np.int32(-1))


@kernel()
def other_tag(lines: int, world: int, generation: int, tag: int) -> int:
    """The first rank whose part of `generation` has another tag, -1 for none."""
    for rank in range(world):
        if load_acquire(lines + rank * LINE_BYTES + TAGS + 8 * (generation & 1)) != tag:
            return rank
    return -1


@kernel()
def tag_of(line: int, generation: int) -> int:
    return int(load_acquire(line + TAGS + 8 * (generation & 1)))


@kernel()
def put_rows(source: int, stride: int, rows: int, width: int, wire: int, slot: int) -> None:
    """float32 rows, `stride` bytes apart, into `slot` without gaps, `wire` bytes a value."""
    for r in range(rows):
        if wire == F32_WIRE:
            copy_row(source + r * stride, slot + 4 * r * width, width)
        else:
            values = view_f32(source + r * stride, width)
            target = view_u16(slot + 2 * r * width, width)
            for i in range(width):
                target[i] = round_bf16(values[i])


@kernel(inline=True)
def add_row(start: int, width: int, wire: int, first: int, sums: int) -> None:
    """sums (+)= one rank's row, which begins the sum where `first`."""
    total = view_f32(sums, width)
    if wire == F32_WIRE:
        values = view_f32(start, width)
        if first != 0:
            for i in range(width):
                total[i] = values[i]
        else:
            for i in range(width):
                total[i] = total[i] + values[i]
        return
    narrow = view_u16(start, width)
    if first != 0:
        for i in range(width):
            total[i] = widen_bf16_value(narrow[i])
    else:
        for i in range(width):
            total[i] = total[i] + widen_bf16_value(narrow[i])


@kernel()
def sum_parts(parts: int, world: int, offset: int, count: int, wire: int, sums: int) -> None:
    """sums [count] = Σ over ranks of what lies `offset` bytes into each one's part; `parts` are the
    addresses of these, int64 [world]."""
    starts = view_i64(parts, world)
    for rank in range(world):
        add_row(starts[rank] + offset, count, wire, int(rank == 0), sums)


@kernel(inline=True)
def put_total(sums: int, width: int, out: int, residual: int) -> None:
    """out [width] = sums, added to what it holds where `residual`."""
    total, target = view_f32(sums, width), view_f32(out, width)
    if residual != 0:
        for i in range(width):
            target[i] = target[i] + total[i]
    else:
        for i in range(width):
            target[i] = total[i]


@kernel()
def put_totals(sums: int, rows: int, width: int, out: int, stride: int, residual: int) -> None:
    """Whole float32 rows without gaps into rows `stride` bytes apart."""
    for r in range(rows):
        put_total(sums + 4 * r * width, width, out + r * stride, residual)


@kernel()
def sum_rows(
    parts: int, world: int, rows: int, width: int, wire: int, sums: int, out: int, stride: int,
    residual: int,
) -> None:  # fmt: skip
    """out[r] = Σ over ranks of their rows r (+ out[r]); `sums` is scratch for `width` floats."""
    for r in range(rows):
        sum_parts(parts, world, wire * r * width, width, wire, sums)
        put_total(sums, width, out + r * stride, residual)
