"""How the weight rows of a streaming step are dealt to a GPU's blocks: by which kernel, in what.

Weight rows and rows of x are told apart by name: `weight_rows` are `n` in the CUDA sources, `count`
(of a tile: `size`) are their `rows`. streamed.cuh says what bands, strips, items and groups are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from kernels_numba.gpu.memory import CHUNK
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
BAND = 8
"""Weight rows of half a matrix instruction. A strip, what it takes, has two bands, or one of gate
rows and its one of up rows."""
STRIP_SUM_BYTES = 2 * BAND * SIZE * 4
"""Bytes of one warp's float32 sums of a strip with SIZE rows of x."""
SHORT_APART = 64
"""Bytes between two of linear_short.cu's rows of x: its APART units of 16."""
MOST_CUTS = 0xFFFFFFFF
"""linear_few.cu finds where its items begin in 32 bits: (bands + 1) * groups is what it divides at
most."""


class EvenSplit(NamedTuple):
    """How a matrix alone is dealt: in each turn a block takes `each` strips, in the first `more`
    turns one more, and `rest` bands (NVFP4: strips) are left for the last."""

    each: int
    more: int
    rest: int


ONE_BY_ONE = EvenSplit(0, 0, 0)
"""Items are dealt one by one: nothing is split beforehand."""


@dataclass(frozen=True, slots=True)
class Deal:
    """A kernel, items per tile of rows of x (of a matrix alone: of each block), blocks, a block's
    shared memory, the split of a matrix alone, and the phase: tile t's cuts lie t * phase / groups
    bands on."""

    unit: Unit
    name: str
    groups: int
    blocks: int
    shared_bytes: int
    split: EvenSplit = ONE_BY_ONE
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Strips of an item at most; the rest as in `Deal`."""

    strips: int
    groups: int
    blocks: int
    split: EvenSplit = ONE_BY_ONE
    phase: int = 0

    @property
    def alone(self) -> bool:
        return any(self.split)


@cache
def deal_short(
    form: Form, weight_rows: int, chunks: int, count: int, processors: int, room: int
) -> Deal | None:
    """How linear_short.cu takes a matrix alone of `weight_rows` for `count` rows of x: where it
    leaves no processor two bands, and a block's shared memory of `room` bytes holds all of its
    weights and of x at once; else None."""
    bands, line = -(-weight_rows // BAND), 2 * CHUNK[Form.BF16] * chunks
    if form is not Form.BF16 or count > SIZE or bands > processors:
        return None
    # A band has half of a strip's sums.
    needed = BAND * line + count * (line + SHORT_APART) + STRIP_SUM_BYTES * WARPS // 2
    return Deal(SHORT, "linear_short", 1, bands, needed) if needed <= room else None


@cache
def deal(
    kind: str,
    form: Form,
    group: int,
    weight_rows: int,
    tiles: int,
    size: int,
    processors: int,
    rings: Rings = LARGE,
) -> Deal:
    """For `weight_rows` (`kind` gated: as many gate and up rows), `size` rows of x a tile: those of
    `tiles` matrices that are dealt item by item, or with 0 of one alone.

    Many weight rows with few rows of x go to linear_few.cu, whose blocks have even work; the rest
    is faster in linear.cu. Both give a row of x the same bits. Raises ValueError for too many
    weight rows.
    """
    blocks, bands = rings.blocks * processors, -(-weight_rows // BAND)
    strip_bands = 1 if kind == "gated" else 2
    ring = rings.stream
    number = tiles or 1
    if size == SIZE and bands * number > strip_bands * blocks:
        made = _few(form, bands, strip_bands, tiles, processors, rings)
        if (bands + 1) * made.groups > MOST_CUTS:
            raise ValueError(f"a matrix of {weight_rows} rows has too many for a streaming launch")
        unit, name = few_unit(form, group, rings, alone=made.alone), f"{kind}_few_{made.strips}"
        ring = rings.alone if made.alone else rings.stream
        ring += SCALE_ROOM if form is Form.FP8_BLOCK else 0
    else:
        every = -(-bands // strip_bands)
        strips = 1 if rings is not LARGE else _broad(form, every * number, size, processors)
        groups = -(-every // strips)
        made = Cut(strips, groups, min(groups * number, blocks))
        unit, name = linear_unit(form, group, rings), f"{kind}_{size}_{strips}"
    needed = ring + STRIP_SUM_BYTES * WARPS * made.strips * size // SIZE
    return Deal(unit, name, made.groups, made.blocks, needed, made.split, made.phase)


def _few(
    form: Form, bands: int, strip_bands: int, tiles: int, processors: int, rings: Rings
) -> Cut:
    """How linear_few.cu takes `bands`, `strip_bands` of which make a strip, for each of `tiles`.

    A matrix alone is dealt in strips and what is left in bands, but NVFP4's in strips too. Where
    blocks would have less than two strips of FP8, half as many take twice as many: the next
    kernel's stand beside them from the start.
    """
    choices, blocks = few_strips(form), rings.blocks * processors
    if tiles:
        strips = strips_of(bands * tiles, strip_bands, blocks, choices)
        groups = groups_of(bands, strip_bands * strips, tiles, blocks)
        return Cut(strips, groups, min(groups * tiles, blocks), phase=(groups - 1) // tiles)
    if form is Form.FP8_BLOCK and bands < 2 * strip_bands * blocks:
        blocks = processors
    turns, split = even_split(bands, strip_bands, choices[-1], blocks)
    last = split.each + -(-split.rest // (strip_bands * blocks))
    longest = max(split.each + (split.more > 0), last)
    if form is Form.NVFP4:
        split = split._replace(rest=-(-split.rest // strip_bands))
    strips = next(choice for choice in choices if choice >= longest)
    return Cut(strips, turns, blocks, split)


def _broad(form: Form, strips: int, size: int, processors: int) -> int:
    """Strips of a block: two, unless that leaves processors without one; FP8's many sums take the
    registers of the second."""
    if size > 2 * SIZE:
        return 2
    if form is Form.FP8_BLOCK:
        return 1
    return 2 if strips >= processors else 1


def even_split(bands: int, strip_bands: int, most: int, blocks: int) -> tuple[int, EvenSplit]:
    """In how many turns to deal a matrix of `bands`, `strip_bands` of them a strip, to `blocks`, at
    most `most` strips to each in a turn, and how: no block has more than one band above another."""
    whole, rest = divmod(bands, strip_bands * blocks)
    turns = max(1, -(-whole // most))
    if whole // turns + (rest > 0) > most:
        turns += 1
    return turns, EvenSplit(*divmod(whole, turns), rest)


def strips_of(bands: int, strip_bands: int, blocks: int, choices: Sequence[int]) -> int:
    """Strips of an item, of the `choices`: what one of `blocks` has of all bands, where there is
    such a kernel. A strip is `strip_bands` bands."""
    own = -(-bands // (strip_bands * blocks))
    return next((choice for choice in choices if choice >= own), choices[-1])


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
