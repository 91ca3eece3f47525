"""How the weight rows of a streaming step are dealt to a GPU's blocks: by which kernel, in what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kernels_numba.gpu.source import RING_BYTES, Unit, few_strips, few_unit, linear_unit
from kernels_numba.weights import Form

WARPS = 8
BLOCKS_EACH = 2
"""Streaming blocks per processor."""
SIZE = 8
"""Rows of x that a matrix instruction takes."""
STRIP_SUMS = 512
"""Bytes of one warp's sums of a strip with SIZE rows."""
BAND = 8
"""Weight rows that are dealt as one. A strip, what a matrix instruction takes, has two bands, or
one of gate rows and its one of up rows."""
MOST_CUTS = 0xFFFFFFFF
"""linear_few.cu cuts bands into items in 32 bits."""


@dataclass(frozen=True, slots=True)
class Deal:
    """A kernel, items per tile of rows of x, blocks, and a block's shared memory in bytes."""

    unit: Unit
    name: str
    groups: int
    blocks: int
    shared: int


@cache
def deal(
    kind: str, form: Form, group: int, rows: int, tiles: int, size: int, processors: int
) -> Deal:
    """For `rows` weight rows (`kind` gated: as many gate and up rows), `size` rows of x a tile.

    Many weight rows with few of x go to linear_few.cu, whose blocks take even shares; the rest is
    faster in linear.cu. Both give a row the same bits. Raises ValueError for too many rows.
    """
    blocks, bands = BLOCKS_EACH * processors, -(-rows // BAND)
    each = 1 if kind == "gated" else 2
    if size == SIZE and bands * tiles > each * blocks:
        strips = strips_of(bands * tiles, each, blocks, few_strips(form))
        groups = groups_of(bands, each * strips, tiles, blocks)
        if bands * groups > MOST_CUTS:
            raise ValueError(f"a matrix of {rows} rows has too many for a streaming launch")
        unit, name = few_unit(form, group), f"{kind}_few_{strips}"
    else:
        every = -(-bands // each)
        strips = _broad(form, every * tiles, size, processors)
        groups = -(-every // strips)
        unit, name = linear_unit(form, group), f"{kind}_{size}_{strips}"
    shared = RING_BYTES + STRIP_SUMS * WARPS * strips * size // SIZE
    return Deal(unit, name, groups, min(groups * tiles, blocks), shared)


def _broad(form: Form, strips: int, size: int, processors: int) -> int:
    """Strips of a block: two, unless that leaves processors without one; FP8's many sums take the
    registers of the second."""
    if size > 2 * SIZE:
        return 2
    if form is Form.FP8_BLOCK:
        return 1
    return 2 if strips >= processors else 1


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
