"""A whole bus over real devices: pollers meet over TCP, ranks sum and gather, and end in order."""

from __future__ import annotations

import numpy as np
import pytest
from whole_bus import bus

from kernels_numba.cpu.memory import Block


@pytest.mark.parametrize("world", [2, 4])
def test_sums_and_gathers_of_both_pools(devices, gid_index, world, package):
    with bus(devices, gid_index, world, [package]) as go:
        for rows, width in ((1, 5), (2, 1024), (40, 1000)):
            parts = np.random.default_rng(rows).standard_normal((world, rows, width), np.float32)

            def reduce(rank, parts=parts):
                out = Block(np.zeros(parts.shape[1:], np.float32))
                rank.all_reduce(len(out.array), Block(parts[rank.rank].copy()), out)
                return out.array

            wanted = parts[0].copy()
            for part in parts[1:]:
                wanted += part
            for result in go(reduce):
                np.testing.assert_array_equal(result, wanted)
        for count in (3, 20_000):
            for told in go(lambda rank, count=count: rank.all_gather(np.arange(count) * rank.rank)):
                np.testing.assert_array_equal(told, np.arange(count) * np.arange(world)[:, None])
        go(lambda rank: rank.barrier())
