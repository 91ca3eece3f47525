"""Scratch for widened weight rows is as large as the largest task writes, at every width."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_numba.backend import Experts
from kernels_numba.cpu.backend import CpuBackend
from kernels_numba.cpu.linear import panel_floats, task_columns
from kernels_numba.cpu.memory import Block
from kernels_numba.weights import Form, Part


@pytest.mark.parametrize("depth", [16, 576, 5120, 6128, 6144, 6160, 8192, 17408, 100_000])
def test_a_panel_holds_the_columns_of_any_task(depth):
    assert panel_floats(depth) >= depth * max(task_columns(rows, depth) for rows in (1, 11, 12, 64))


def test_a_crowded_expert_of_a_wide_model_writes_within_its_scratch():
    hidden, inner, experts, crowd = 8192, 16, 16, 13
    rng = np.random.default_rng(0)
    backend = CpuBackend(64, 2)

    def bits(*shape):
        return (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype("u2")

    mixture = Experts(
        backend.matrix([Part(Form.BF16, bits(2 * inner * experts, hidden))]),
        backend.matrix([Part(Form.BF16, bits(hidden * experts, inner))]),
        inner,
    )
    panels = backend._panels.array
    guarded = np.full(panels.size + 200_000, 7.0, np.float32)
    backend._panels = Block(guarded[: panels.size].reshape(panels.shape))
    rows, x, out = backend.rows(1, 1), backend.tensor(hidden), backend.tensor(hidden)
    routes = backend.routes(1)
    rows.count = crowd
    backend.write(x, rng.standard_normal((crowd, hidden)).astype(np.float32))
    routes.ids[:crowd, 0] = 3
    routes.weights[:crowd] = 1.0
    backend.moe(rows, x, mixture, routes, None, out)
    assert (guarded[panels.size :] == 7.0).all()
