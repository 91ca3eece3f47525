"""What only shared memory does: sums of one rank alone, rounded as on a wire."""

from __future__ import annotations

import numpy as np
from net_worlds import world_of
from sum_oracles import padded_block, to_bf16

from dgpp.net.collective import Wire


def test_not_a_number_stays_one_on_a_bf16_wire() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, -0.0, 3e38]], np.float32)
    values.view(np.uint32)[0, 0] = 0x7FFFFFFF
    out = padded_block(np.ones((1, 5), np.float32), 0)
    with world_of(1, wire=Wire.BF16) as world:
        world.ranks[0].all_reduce(1, padded_block(values, 0), out, add=False)
    result = out.array
    assert np.isnan(result[0, 0])
    np.testing.assert_array_equal(result[0, 1:3], values[0, 1:3])
    assert np.signbit(result[0, 3])
    assert result[0, 4] == to_bf16(values[0, 4:])[0]
