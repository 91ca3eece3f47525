"""Blocks, own state and snapshots: copies hold what was there, whatever happens to the original."""

from __future__ import annotations

import random

import pytest

from dgpp.engine.backends import make_backend
from dgpp.state.declaration import (
    CPU_CACHE,
    CUDA_CACHE,
    FixedState,
    PagedPlane,
    PagedRows,
    Ring,
    StateDeclaration,
)
from dgpp.state.pools import StatePools

DECLARATION = StateDeclaration(
    planes=(PagedPlane("kv", 2, 24),),
    paged=(PagedRows("keys", 20, every=4),),
    rings=(Ring("window", 6, 8),),
    fixed=(FixedState("sums", 3, 5),),
)
BLOCK, BLOCKS, SLOTS, SNAPSHOTS = 16, 4, 2, 3


@pytest.fixture
def pools(backend_name: str):
    def make(declaration: StateDeclaration = DECLARATION) -> StatePools:
        return StatePools(
            declaration,
            make_backend(backend_name, 4, 1),
            slots=SLOTS,
            blocks=BLOCKS,
            block_tokens=BLOCK,
            snapshots=SNAPSHOTS,
        )

    return make


def block_bytes(held: StatePools, block: int) -> bytes:
    out = bytearray(held.block_bytes)
    held.read_block(block, memoryview(out))
    return bytes(out)


def snapshot_bytes(held: StatePools, snapshot: int) -> bytes:
    out = bytearray(held.snapshot_bytes)
    held.read_snapshot(snapshot, memoryview(out))
    return bytes(out)


def test_sizes_are_those_of_the_declaration():
    # Heads of 24 and rows of 20 are padded to 32, rows of 8 and 5 to 16 float32 values.
    assert DECLARATION.block_bytes(CPU_CACHE, BLOCK) == 4 * (2 * 2 * 16 * 32 + 4 * 32)
    assert DECLARATION.snapshot_bytes(CPU_CACHE) == 4 * (6 * 16 + 3 * 16)
    # On the GPU rows are bf16 padded to 32, sums float32.
    assert DECLARATION.block_bytes(CUDA_CACHE, BLOCK) == 2 * (2 * 2 * 16 * 32 + 4 * 32)
    assert DECLARATION.snapshot_bytes(CUDA_CACHE) == 2 * 6 * 32 + 4 * 3 * 32
    assert not DECLARATION.paged_only
    assert StateDeclaration(DECLARATION.planes, DECLARATION.paged).paged_only


def test_pools_have_the_size_that_was_planned(pools, backend_name):
    held = pools()
    form = CUDA_CACHE if backend_name == "cuda" else CPU_CACHE
    assert held.block_bytes == DECLARATION.block_bytes(form, BLOCK)
    assert held.snapshot_bytes == DECLARATION.snapshot_bytes(form)


def test_a_block_is_copied_in_every_layer_and_no_other_is_touched(pools):
    held, rng = pools(), random.Random(1)
    filled = [rng.randbytes(held.block_bytes) for _ in range(BLOCKS)]
    for block, data in enumerate(filled):
        held.write_block(block, memoryview(data))
    held.copy_block(1, 3)
    assert [block_bytes(held, block) for block in range(BLOCKS)] == [*filled[:3], filled[1]]


def test_a_snapshot_outlives_its_slot(pools):
    held, rng = pools(), random.Random(2)
    first, second = (rng.randbytes(held.snapshot_bytes) for _ in range(2))
    held.write_snapshot(0, memoryview(first))
    held.write_snapshot(1, memoryview(second))
    held.restore(0, 0)
    held.restore(1, 1)
    held.keep(0, 2)
    held.clear(0)
    held.keep(0, 0)
    assert snapshot_bytes(held, 0) == bytes(held.snapshot_bytes)
    held.keep(1, 1)
    assert snapshot_bytes(held, 1) == second
    held.restore(2, 1)
    held.keep(1, 1)
    assert snapshot_bytes(held, 1) == first


def test_rows_that_a_block_would_cut_are_refused(pools):
    with pytest.raises(ValueError, match="cut rows of 3"):
        pools(StateDeclaration((), paged=(PagedRows("keys", 8, every=3),)))


def test_blocks_hold_whole_rows():
    assert DECLARATION.block_tokens(64) == 64
    rows = (PagedRows("a", 8, every=4), PagedRows("b", 8, every=128), PagedRows("c", 8, every=6))
    assert StateDeclaration((), rows).block_tokens(64) == 384
    assert StateDeclaration(()).block_tokens(64) == 64
