"""How a streaming step's weights are dealt to a GPU's blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_numba.gpu.dealing import Shares, deal, groups_of, shares_of, strips_of
from kernels_numba.weights import Form

BLOCKS = 264


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


def dealt(turns: int, shares: Shares, blocks: int) -> list[list[range]]:
    """Units of each block's items, as the kernel deals a matrix alone."""
    each, more, rest = shares
    items: list[list[range]] = [[] for _ in range(blocks)]
    for turn in range(turns):
        own, before = each + (turn < more), each * turn + min(turn, more)
        extra = rest if turn + 1 == turns else 0
        for block in range(blocks):
            begin = blocks * before + block * own + min(block, extra)
            items[block].append(range(begin, begin + own + (block < extra)))
    return items


@given(units=st.integers(1, 20000), most=st.integers(2, 8), blocks=st.integers(1, 300))
def test_a_matrix_alone_is_dealt_evenly_in_items_that_fit(
    units: int, most: int, blocks: int
) -> None:
    turns, shares = shares_of(units, most, blocks)
    items = dealt(turns, shares, blocks)
    assert max(len(item) for block in items for item in block) <= most
    every = [unit for block in items for item in block for unit in item]
    assert sorted(every) == list(range(units))
    totals = [sum(map(len, block)) for block in items]
    assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize(
    ("units", "most", "turns", "shares"),
    [
        # 17408 rows in strips: four a block and 32 more; 5120: one and 56 more, and in bands.
        (1088, 3, 2, (2, 0, 32)),
        (320, 3, 1, (1, 0, 56)),
        (640, 6, 1, (2, 0, 112)),
        # 248320: 58 a block in twenty turns, eighteen of three and two of two, and 208 more.
        (15520, 3, 20, (2, 18, 208)),
        # Whole turns of three leave no room for one more.
        (3 * BLOCKS + 1, 3, 2, (1, 1, 1)),
    ],
)
def test_shares_take_as_few_turns_as_they_can(
    units: int, most: int, turns: int, shares: Shares
) -> None:
    assert shares_of(units, most, BLOCKS) == (turns, shares)


@pytest.mark.parametrize("tiles", [2, 9, 17, 60])
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
    large = deal("linear", Form.NVFP4, 0, 5120, 1, 8, 132)
    assert (large.name, large.blocks, large.shares) == ("linear_few_2", 264, (1, 0, 56))
    # FP8: a block a processor, where two would have less than two strips each.
    large = deal("linear", Form.FP8_BLOCK, 128, 5120, 1, 8, 132)
    assert (large.name, large.blocks, large.shares) == ("linear_few_3", 132, (2, 0, 56))
    larger = deal("linear", Form.FP8_BLOCK, 128, 17408, 1, 8, 132)
    assert (larger.name, larger.blocks, larger.shares) == ("linear_few_3", 264, (2, 0, 32))
    # bf16 by bands.
    large = deal("linear", Form.BF16, 0, 5120, 1, 8, 132)
    assert (large.name, large.blocks, large.shares) == ("linear_few_2", 264, (2, 0, 112))
    # The same with more rows of x, and fewer weights.
    assert deal("linear", Form.FP8_BLOCK, 128, 5120, 1, 16, 132).name == "linear_16_1"
    small = deal("linear", Form.BF16, 0, 1536, 1, 8, 132)
    assert (small.name, small.groups) == ("linear_8_1", 96)


def test_too_many_rows_are_named() -> None:
    with pytest.raises(ValueError, match="of 4194304 rows has too many"):
        deal("linear", Form.BF16, 0, 1 << 22, 2, 8, 132)
