"""How a streaming step's weights are dealt to a GPU's blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_numba.gpu.dealing import deal, groups_of, strips_of
from kernels_numba.weights import Form


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


def test_blocks_have_even_shares() -> None:
    # 5120 rows on 264 blocks: an item each, of two or three bands.
    assert groups_of(640, 4, 1, 264) == 264
    # 248320 rows: whole turns, and nearly as much in each item as it can hold.
    groups = groups_of(31040, 6, 1, 264)
    assert groups % 264 == 0
    assert 31040 / groups > 5.6


def test_an_item_is_a_block_s_share_where_it_fits() -> None:
    assert strips_of(192, 2, 264, (1, 2, 3)) == 1
    assert strips_of(640, 2, 264, (1, 2, 3)) == 2
    assert strips_of(31040, 2, 264, (1, 2, 3)) == 3
    assert strips_of(8 * 192, 1, 264, (1, 2, 4)) == 4


def test_few_rows_of_a_large_matrix_have_a_kernel_of_their_own() -> None:
    large = deal("linear", Form.FP8_BLOCK, 128, 5120, 1, 8, 132)
    assert (large.name, large.groups, large.blocks) == ("linear_few_2", 264, 264)
    # The same with more rows of x, and fewer weights.
    assert deal("linear", Form.FP8_BLOCK, 128, 5120, 1, 16, 132).name == "linear_16_1"
    small = deal("linear", Form.BF16, 0, 1536, 1, 8, 132)
    assert (small.name, small.groups) == ("linear_8_1", 96)


def test_too_many_rows_are_named() -> None:
    with pytest.raises(ValueError, match="of 4194304 rows has too many"):
        deal("linear", Form.BF16, 0, 1 << 22, 1, 8, 132)
