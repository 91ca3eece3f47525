"""What the host decides for the kernels of many rows: tiles, and which rows have their own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels_numba.gpu.attend_wide import LONG, long_rows, tiles_of
from kernels_numba.gpu.wide import BLOCK_ROWS, PAIR, SIZES, Wide

CLUSTERS = 66


def stretches():
    """(slot, first position, rows) of a step's stretches; neighbours differ in slot."""
    one = st.tuples(st.integers(0, 3), st.integers(0, 900), st.integers(1, 90))
    return st.lists(one, min_size=1, max_size=6).map(
        lambda all_: [(4 * i + slot, first, rows) for i, (slot, first, rows) in enumerate(all_)]
    )


def step_of(parts) -> tuple[np.ndarray, np.ndarray]:
    slots = np.concatenate([np.full(rows, slot, np.int32) for slot, _, rows in parts])
    positions = [np.arange(first, first + rows, dtype=np.int32) for _, first, rows in parts]
    return slots, np.concatenate(positions)


@given(stretches(), st.integers(1, 200))
def test_tiles_cover_each_row_up_to_the_last_long_stretch_once(parts, size) -> None:
    slots, positions = step_of(parts)
    found, end = long_rows(slots, positions)
    tiles = tiles_of(found, slots, positions, size)
    long = [i for i, (_, _, rows) in enumerate(parts) if rows >= LONG]
    assert end == sum(rows for _, _, rows in parts[: long[-1] + 1 if long else 0])
    covered = np.zeros(len(slots), int)
    for first, rows, slot, last in tiles:
        assert 1 <= rows <= size
        covered[first : first + rows] += 1
        assert (slots[first : first + rows] == slot).all()
        np.testing.assert_array_equal(
            positions[first : first + rows], np.arange(last - rows + 1, last + 1)
        )
    assert (covered[:end] == 1).all()
    assert not covered[end:].any()
    assert (np.diff(tiles[:, 3]) <= 0).all()


def test_a_decode_step_has_no_long_stretch() -> None:
    found, end = long_rows(np.arange(100, dtype=np.int32), np.full(100, 7, np.int32))
    assert (found, end) == ([], 0)


class Launches:
    """Stands where kernels are launched."""

    architecture = "sm_90a"


def test_a_tile_s_size_keeps_the_last_turn_full() -> None:
    wide = Wide(Launches(), 2048, 2 * CLUSTERS)
    # 5,120 weight rows make 20 pairs of blocks. 2,048 rows in tiles of 160 are 13 · 20 = 260 pieces
    # of work, four turns of 66; in tiles of 144 they are 15 · 20 = 300, five turns.
    assert wide.tile_rows(2048, 5120) == 160
    for count in (65, 300, 2048, 8192):
        for rows in (160, 5120, 14336):
            assert wide.tile_rows(count, rows) in SIZES
    # One turn holds everything: the smallest tile ends first.
    assert wide.tile_rows(100, BLOCK_ROWS * PAIR) == SIZES[0]
