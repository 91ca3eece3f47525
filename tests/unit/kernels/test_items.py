"""How a streaming step's weights are dealt to a GPU's blocks."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_numba.gpu.dealing import (
    EvenSplit,
    deal,
    deal_short,
    even_split,
    groups_of,
    strips_of,
)
from kernels_numba.gpu.project import NARROW, _stage_bytes
from kernels_numba.gpu.source import FORMS, LARGE, SMALL, Rings, rings_of
from kernels_numba.weights import Form

BLOCKS = 264
A100, GB10, H200 = 163 << 10, 99 << 10, 227 << 10
"""Shared memory of a block at most; a processor has a KiB more, each of its blocks takes one."""


@given(
    bands=st.integers(1, 5000),
    most=st.integers(1, 8),
    tiles=st.integers(1, 64),
    blocks=st.integers(1, 300),
)
def test_items_hold_no_more_than_a_block_takes_at_once(
    bands: int, most: int, tiles: int, blocks: int
) -> None:
    groups = groups_of(bands, most, tiles, blocks)
    # As the kernel cuts them.
    cuts = [group * bands // groups for group in range(groups + 1)]
    sizes = [last - first for first, last in pairwise(cuts)]
    assert sum(sizes) == bands
    assert 1 <= min(sizes) <= max(sizes) <= most


def dealt(turns: int, split: EvenSplit, each: int, blocks: int) -> list[list[range]]:
    """Bands of each block's items, `each` a strip, as the kernel deals a matrix alone."""
    own, longer, rest = split
    items: list[list[range]] = [[] for _ in range(blocks)]
    for turn in range(turns):
        strips, before = own + (turn < longer), own * turn + min(turn, longer)
        left = rest if turn + 1 == turns else 0
        for block in range(blocks):
            begin = each * (blocks * before + block * strips)
            first, behind = (
                at * (left // blocks) + min(at, left % blocks) for at in (block, block + 1)
            )
            items[block].append(range(begin + first, begin + each * strips + behind))
    return items


@given(
    bands=st.integers(1, 20000),
    each=st.integers(1, 2),
    most=st.integers(2, 4),
    blocks=st.integers(1, 300),
)
def test_a_matrix_alone_is_dealt_evenly_in_items_that_fit(
    bands: int, each: int, most: int, blocks: int
) -> None:
    turns, split = even_split(bands, each, most, blocks)
    items = dealt(turns, split, each, blocks)
    assert max(len(item) for block in items for item in block) <= each * most
    every = [band for block in items for item in block for band in item]
    assert sorted(every) == list(range(bands))
    totals = [sum(map(len, block)) for block in items]
    assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize(
    ("bands", "each", "most", "turns", "split"),
    [
        # 17408 rows: four strips a block and 64 bands; 5120: one and 112 bands, gated two and 112.
        (2176, 2, 3, 2, (2, 0, 64)),
        (640, 2, 3, 1, (1, 0, 112)),
        (640, 1, 3, 1, (2, 0, 112)),
        # 248320: 58 a block in twenty turns, eighteen of three and two of two, and 416 bands.
        (31040, 2, 3, 20, (2, 18, 416)),
        # Whole turns of three leave no room for one more.
        (6 * BLOCKS + 1, 2, 3, 2, (1, 1, 1)),
    ],
)
def test_a_split_takes_as_few_turns_as_they_can(
    bands: int, each: int, most: int, turns: int, split: tuple[int, int, int]
) -> None:
    assert even_split(bands, each, most, BLOCKS) == (turns, split)


@pytest.mark.parametrize("tiles", [1, 2, 9, 17, 60])
@pytest.mark.parametrize(("kind", "rows", "each"), [("gated", 1536, 1), ("linear", 5120, 2)])
def test_blocks_have_nearly_even_shares_of_many_tiles(
    kind: str, rows: int, each: int, tiles: int
) -> None:
    made = deal(kind, Form.NVFP4, 0, rows, tiles, 8, 132)
    bands, groups = rows // 8, made.groups
    totals, dealt = [0] * made.blocks, 0
    for index in range(groups * tiles):
        tile, group = index // groups + 1, index % groups
        first, behind = ((at * bands + tile * made.phase) // groups for at in (group, group + 1))
        assert 0 <= first < behind <= bands
        assert behind - first <= each * int(made.name[-1])
        totals[index % made.blocks] += behind - first
        dealt += behind - first
    assert dealt == bands * tiles
    turns = -(-groups * tiles // made.blocks)
    # No block has more than its turns of mean items, and three bands.
    assert max(totals) <= turns * bands / groups + 3


def test_an_item_is_a_block_s_share_where_it_fits() -> None:
    assert strips_of(192, 2, 264, (1, 2, 3)) == 1
    assert strips_of(640, 2, 264, (1, 2, 3)) == 2
    assert strips_of(31040, 2, 264, (1, 2, 3)) == 3
    assert strips_of(8 * 192, 1, 264, (1, 2, 4)) == 4


def test_few_rows_of_a_large_matrix_have_a_kernel_of_their_own() -> None:
    large = deal("linear", Form.NVFP4, 0, 5120, 0, 8, 132)
    assert (large.name, large.blocks, large.split) == ("linear_few_2", 264, (1, 0, 56))
    # FP8: a block a processor, where two would have less than two strips each.
    large = deal("linear", Form.FP8_BLOCK, 128, 5120, 0, 8, 132)
    assert (large.name, large.blocks, large.split) == ("linear_few_3", 132, (2, 0, 112))
    larger = deal("linear", Form.FP8_BLOCK, 128, 17408, 0, 8, 132)
    assert (larger.name, larger.blocks, larger.split) == ("linear_few_3", 264, (2, 0, 64))
    large = deal("linear", Form.BF16, 0, 5120, 0, 8, 132)
    assert (large.name, large.blocks, large.split) == ("linear_few_2", 264, (1, 0, 112))
    # The same with more rows of x, and fewer weights.
    assert deal("linear", Form.FP8_BLOCK, 128, 5120, 0, 16, 132).name == "linear_16_1"
    small = deal("linear", Form.BF16, 0, 1536, 0, 8, 132)
    assert (small.name, small.groups) == ("linear_8_1", 96)


def test_the_only_tile_of_experts_is_no_matrix_alone() -> None:
    alone, tile = (deal("linear", Form.BF16, 0, 5120, tiles, 8, 132) for tiles in (0, 1))
    assert ("ALONE", 1) in alone.unit.defines
    assert ("ALONE", 0) in tile.unit.defines
    assert not any(tile.split)


def test_rings_are_as_large_as_a_block_has_room_for() -> None:
    assert [rings_of(room) for room in (GB10, A100, H200)] == [SMALL, SMALL, LARGE]


@pytest.mark.parametrize(("rings", "room"), [(SMALL, GB10), (LARGE, H200)])
@pytest.mark.parametrize(("form", "group"), FORMS)
@pytest.mark.parametrize("kind", ["linear", "gated"])
def test_blocks_find_their_shared_memory(
    kind: str, form: Form, group: int, rings: Rings, room: int
) -> None:
    for rows in (8, 160, 1536, 5120, 17408, 248320):
        for tiles in (0, 1, 9, 60) if rows <= 5120 else (0, 1):
            for size in (8, 16, 32, 64):
                made = deal(kind, form, group, rows, tiles, size, 48, rings)
                assert made.shared_bytes <= room
                if "few" in made.name:
                    assert rings.blocks * ((1 << 10) + made.shared_bytes) <= (1 << 10) + room
    for count in range(1, 9):
        short = deal_short(form, 160, 80, count, 48, room)
        assert short is None or short.shared_bytes <= room
    matrix = SimpleNamespace(form=form, group=group)
    assert rings.stages * _stage_bytes(matrix, NARROW) <= room


def test_too_many_rows_are_named() -> None:
    with pytest.raises(ValueError, match="of 4194304 rows has too many"):
        deal("linear", Form.BF16, 0, 1 << 22, 2, 8, 132)


def test_a_matrix_of_few_weights_has_a_kernel_of_its_own() -> None:
    # A router of 160 rows, 80 chunks each: 8 of 10,240 bytes and 2,048 of sums, and rows of x.
    for count, shared in ((1, 94_272), (8, 166_400)):
        made = deal_short(Form.BF16, 160, 80, count, 132, H200)
        assert made is not None
        assert (made.name, made.blocks, made.shared_bytes) == ("linear_short", 20, shared)
    # One row more than the processors have bands; more of x; longer rows; other weights.
    assert deal_short(Form.BF16, 8 * 132, 80, 8, 132, H200) is not None
    assert deal_short(Form.BF16, 8 * 132 + 1, 80, 8, 132, H200) is None
    assert deal_short(Form.BF16, 160, 80, 9, 132, H200) is None
    assert deal_short(Form.BF16, 256, 113, 8, 132, H200) is None
    assert deal_short(Form.NVFP4, 160, 80, 1, 132, H200) is None
