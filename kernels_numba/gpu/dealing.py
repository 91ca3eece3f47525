"""How the weight rows of a streaming step are dealt to a GPU's blocks: by which kernel, in what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from kernels_numba.gpu.source import (
    LARGE,
    SCALE_ROOM,
    SHORT,
    Rings,
    Unit,
    few_strips,
    few_unit,
    linear_unit,
)
from kernels_numba.weights import Form

WARPS = 8
SIZE = 8
"""Rows of x that a matrix instruction takes."""
STRIP_SUMS = 512
"""Bytes of one warp's sums of a strip with SIZE rows."""
BAND = 8
"""Weight rows of half a matrix instruction. A strip, what it takes, has two bands, or one of gate
rows and its one of up rows."""
SHORT_CHUNK = 64
"""Values of a chunk of linear_short.cu's rows."""
SHORT_APART = 64
"""Bytes that its rows of x lie apart."""
MOST_CUTS = 0xFFFFFFFF
"""linear_few.cu cuts bands into items in 32 bits."""


Shares: TypeAlias = "tuple[int, int, int]"
"""Of a matrix alone: strips of every block in each turn, in how many turns it takes one more, and
how many bands (NVFP4: strips) are left for the last. Zeros where items are dealt one by one."""


@dataclass(frozen=True, slots=True)
class Deal:
    """A kernel, items per tile of rows of x (of a matrix alone: of each block), blocks, a block's
    shared memory in bytes, shares, and the phase: tile t's cuts lie t * phase / groups bands on."""

    unit: Unit
    name: str
    groups: int
    blocks: int
    shared: int
    shares: Shares = (0, 0, 0)
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Strips of an item at most, items per tile or of each block, blocks, shares, phase."""

    strips: int
    groups: int
    blocks: int
    shares: Shares = (0, 0, 0)
    phase: int = 0

    @property
    def alone(self) -> bool:
        return any(self.shares)


@cache
def deal_short(
    form: Form, rows: int, chunks: int, count: int, processors: int, room: int
) -> Deal | None:
    """How linear_short.cu takes a matrix alone of `rows` rows for `count` of x: where it leaves no
    processor two bands, and a block's shared memory of `room` bytes holds all of its weights and of
    x at once; else None."""
    bands, line = -(-rows // BAND), 2 * SHORT_CHUNK * chunks
    if form is not Form.BF16 or count > SIZE or bands > processors:
        return None
    shared = BAND * line + count * (line + SHORT_APART) + STRIP_SUMS * WARPS // 2
    return Deal(SHORT, "linear_short", 1, bands, shared) if shared <= room else None


@cache
def deal(
    kind: str,
    form: Form,
    group: int,
    rows: int,
    tiles: int,
    size: int,
    processors: int,
    rings: Rings = LARGE,
) -> Deal:
    """For `rows` weight rows (`kind` gated: as many gate and up rows), `size` rows of x a tile.

    Many weight rows with few of x go to linear_few.cu, whose blocks take even shares; the rest is
    faster in linear.cu. Both give a row the same bits. Raises ValueError for too many rows.
    """
    blocks, bands = rings.blocks * processors, -(-rows // BAND)
    each = 1 if kind == "gated" else 2
    ring = rings.stream
    if size == SIZE and bands * tiles > each * blocks:
        made = _few(form, bands, each, tiles, processors, rings)
        if (bands + 1) * made.groups > MOST_CUTS:
            raise ValueError(f"a matrix of {rows} rows has too many for a streaming launch")
        unit, name = few_unit(form, group, rings, alone=made.alone), f"{kind}_few_{made.strips}"
        ring = rings.alone if made.alone else rings.stream
        ring += SCALE_ROOM if form is Form.FP8_BLOCK else 0
    else:
        every = -(-bands // each)
        strips = 1 if rings is not LARGE else _broad(form, every * tiles, size, processors)
        groups = -(-every // strips)
        made = Cut(strips, groups, min(groups * tiles, blocks))
        unit, name = linear_unit(form, group, rings), f"{kind}_{size}_{strips}"
    shared = ring + STRIP_SUMS * WARPS * made.strips * size // SIZE
    return Deal(unit, name, made.groups, made.blocks, shared, made.shares, made.phase)


def _few(form: Form, bands: int, each: int, tiles: int, processors: int, rings: Rings) -> Cut:
    """How linear_few.cu takes `bands`, `each` of which make a strip.

    A matrix alone is dealt in strips and what is left in bands, but NVFP4's in strips too. Where
    blocks would have less than two strips of FP8, half as many take twice as many: the next
    kernel's stand beside them from the start.
    """
    choices, blocks = few_strips(form), rings.blocks * processors
    if tiles > 1:
        strips = strips_of(bands * tiles, each, blocks, choices)
        groups = groups_of(bands, each * strips, tiles, blocks)
        return Cut(strips, groups, min(groups * tiles, blocks), phase=(groups - 1) // tiles)
    if form is Form.FP8_BLOCK and bands < 2 * each * blocks:
        blocks = processors
    turns, shares = shares_of(bands, each, choices[-1], blocks)
    longest = max(shares[0] + (shares[1] > 0), shares[0] + -(-shares[2] // (each * blocks)))
    if form is Form.NVFP4:
        shares = (*shares[:2], -(-shares[2] // each))
    strips = next(choice for choice in choices if choice >= longest)
    return Cut(strips, turns, blocks, shares)


def _broad(form: Form, strips: int, size: int, processors: int) -> int:
    """Strips of a block: two, unless that leaves processors without one; FP8's many sums take the
    registers of the second."""
    if size > 2 * SIZE:
        return 2
    if form is Form.FP8_BLOCK:
        return 1
    return 2 if strips >= processors else 1


def shares_of(bands: int, each: int, most: int, blocks: int) -> tuple[int, Shares]:
    """In how many turns to deal a matrix of `bands`, `each` of them a strip, to `blocks`, at most
    `most` strips to each in a turn, and its shares: all blocks have the same bands, up to one."""
    whole, rest = divmod(bands, each * blocks)
    turns = max(1, -(-whole // most))
    if whole // turns + (rest > 0) > most:
        turns += 1
    return turns, (*divmod(whole, turns), rest)


def strips_of(bands: int, each: int, blocks: int, choices: Sequence[int]) -> int:
    """Strips of an item, of the `choices`: what a block's share of all bands comes to, where there
    is such a kernel. A strip is `each` bands."""
    share = -(-bands // (each * blocks))
    return next((choice for choice in choices if choice >= share), choices[-1])


def groups_of(bands: int, most: int, tiles: int, blocks: int) -> int:
    """In how many items of at most `most` bands to cut `bands`, for each of `tiles`: so that no
    block has more to do than it must. An item costs about a band beside its own."""
    least = -(-bands // most)

    def cost(groups: int) -> tuple[int, int]:
        items = groups * tiles
        turns = -(-items // blocks)
        even = items % blocks == 0
        bands_of_one = -(-bands * tiles // blocks) if even else turns * -(-bands // groups)
        return turns + bands_of_one, -groups

    return min(range(least, min(bands, least + blocks) + 1), key=cost)
