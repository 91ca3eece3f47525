"""A GPU whose blocks have little shared memory, as GB10's, gives the bits of one with more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_oracles import bf16_rows, random_part, rows_of, tensor_of

from kernels_numba.weights import Form

GB10 = 99 << 10
ROWS, COLUMNS = 168, 1664
COUNTS = (1, 8, 16, 30, 60, 70)
"""Rows of x for every kernel: streaming ones of few, of 8, 16, 32 and 64, and the tiled one."""


@pytest.fixture(scope="module")
def small(backend):
    if backend.name != "cuda":
        pytest.skip("shared memory is a GPU's")
    from kernels_numba.gpu import backend as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_device", lambda _index: replace(backend.device, shared=GB10))
        return module.CudaBackend(backend.capacity)


@pytest.mark.parametrize("form", [Form.BF16, Form.NVFP4, Form.FP8_BLOCK])
@pytest.mark.parametrize("gated", [False, True])
def test_small_rings_change_no_bit(backend, small, form, gated) -> None:
    parts = [random_part(form, ROWS, COLUMNS, seed)[0] for seed in (1, 2)]
    x = bf16_rows(np.random.default_rng(3), COUNTS[-1], COLUMNS)

    def run(on, count: int) -> np.ndarray:
        out = on.tensor(ROWS if gated else 2 * ROWS, wide=not gated)
        product = on.gated if gated else on.linear
        product(rows_of(on, count), tensor_of(on, x), on.matrix(parts), out)
        return on.read(out, count)

    for count in COUNTS:
        np.testing.assert_array_equal(run(small, count), run(backend, count))


def test_heads_without_room_are_named(small) -> None:
    with pytest.raises(ValueError, match=r"heads of 256 values: a block of this device has 99 KiB"):
        small.plane(2, 16, 1, 256)
    assert small.plane(2, 16, 1, 128).padded == 128
