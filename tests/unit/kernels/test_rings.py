"""A GPU whose blocks have little shared memory, as GB10's, gives the bits of one with more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_oracles import bf16_rows, random_part, rows_of, tensor_of

from kernels_numba.backend import Routing
from kernels_numba.weights import Form, Part

GB10 = 99 << 10
COLUMNS = 1664
COUNTS = (1, 8, 16, 30, 60, 70)
"""Rows of x for every kernel: streaming ones of few, of 8, 16, 32 and 64, and the tiled one."""


@pytest.fixture(scope="module")
def small(backend):
    if backend.name != "cuda":
        pytest.skip("shared memory is a GPU's")
    from kernels_numba.gpu import backend as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_device", lambda _index: replace(backend.device, shared=GB10))
        made = module.CudaBackend(backend.capacity)
    # A GPU would take more; the emulated one takes what it is told.
    made._kernels.room = GB10
    return made


def fp8_part(group: int, rows: int, seed: int) -> Part:
    """A part of `rows` rows with blocks of 8 rows and `group` columns."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0x30, 0x48, (rows, COLUMNS)).astype(np.uint8)
    scale = rng.uniform(0.5, 2, (-(-rows // 8), -(-COLUMNS // group))).astype(np.float32)
    return Part(Form.FP8_BLOCK, codes, scale, block=(8, group))


@pytest.mark.parametrize("form", [Form.BF16, Form.NVFP4, Form.FP8_BLOCK])
@pytest.mark.parametrize("gated", [False, True])
def test_small_rings_change_no_bit(backend, small, form, gated) -> None:
    # Five bands a processor, and so many rows that none of a last one is left.
    rows = 40 * backend.device.processors
    parts = [random_part(form, rows, COLUMNS, seed)[0] for seed in (1, 2)]
    x = bf16_rows(np.random.default_rng(3), COUNTS[-1], COLUMNS)

    def run(on, count: int) -> np.ndarray:
        out = on.tensor(rows if gated else 2 * rows, wide=not gated)
        product = on.gated if gated else on.linear
        product(rows_of(on, count), tensor_of(on, x), on.matrix(parts), out)
        return on.read(out, count)

    together = run(backend, COUNTS[-1])
    for count in COUNTS:
        got = run(small, count)
        np.testing.assert_array_equal(got, together[:count])
        np.testing.assert_array_equal(got, run(backend, count))


@pytest.mark.parametrize("gated", [False, True])
def test_narrow_scales_go_along_with_weights(backend, gated) -> None:
    if backend.name != "cuda":
        pytest.skip("how scales come to a multiplication is a GPU's")
    # As many rows as linear_few.cu takes for few of x, a lone band of eight among them.
    rows = 40 * backend.device.processors + 8
    matrix = backend.matrix([fp8_part(32, rows, seed) for seed in (1, 2)])
    x = tensor_of(backend, bf16_rows(np.random.default_rng(3), 16, COLUMNS))

    def run(count: int) -> np.ndarray:
        out = backend.tensor(rows if gated else 2 * rows, wide=not gated)
        product = backend.gated if gated else backend.linear
        product(rows_of(backend, count), x, matrix, out)
        return backend.read(out, count)

    together = run(16)
    for count in (1, 8):
        np.testing.assert_array_equal(run(count), together[:count])


def test_heads_without_room_are_named(small) -> None:
    with pytest.raises(ValueError, match=r"heads of 256 values: a block of this device has 99 KiB"):
        small.plane(2, 16, 1, 256)
    assert small.plane(2, 16, 1, 128).padded == 128


@pytest.mark.parametrize("little", [True, False])
def test_what_is_known_before_weights_is_what_the_device_takes(backend, small, little) -> None:
    """The largest head and the most experts of `limits_of` are taken, the next are not."""
    from kernels_numba.gpu.limits import limits_of

    on = small if little else backend
    limits = limits_of(on.device)
    assert on.plane(1, 16, 1, limits.head).padded == limits.head
    for wrong in (limits.head + limits.head_step, limits.head - 1):
        with pytest.raises(ValueError, match=f"heads of {wrong} values|head_dim must be"):
            on.plane(1, 16, 1, wrong)
    for experts, top, taken in (
        (limits.experts, limits.top, True),
        (limits.experts + 1, limits.top, False),
        (limits.experts, limits.top + 1, False),
    ):
        gate = on.dummy(Form.BF16, experts, 64, 1)
        bias = on.vector(np.zeros(experts, np.float32))
        routing = Routing(gate, bias, experts, top, normalise=True, scale=1.0)
        rows, routes = rows_of(on, 17), on.routes(top)
        if taken:
            on.route(rows, on.tensor(64), routing, routes)
            # Of equal scores the first experts.
            assert on.read_routes(routes, 17)[0].tolist() == [[*range(top)]] * 17
        else:
            with pytest.raises(ValueError, match=f"at most {limits.top} of {limits.experts}"):
                on.route(rows, on.tensor(64), routing, routes)


def test_experts_without_room_are_named(small) -> None:
    """Keys and scores of sixteen rows, eight bytes an expert, beside eight KiB."""
    most = ((99 - 8) << 10) // (16 * 8)
    gate = small.dummy(Form.BF16, most + 1, 64, 1)
    bias = small.vector(np.zeros(most + 1, np.float32))
    routing = Routing(gate, bias, most + 1, 8, normalise=True, scale=1.0)
    rows = rows_of(small, 1)
    with pytest.raises(ValueError, match=f"8 of {most + 1} experts: at most 32 of {most}"):
        small.route(rows, small.tensor(64), routing, small.routes(8))


@pytest.mark.parametrize("form", [Form.BF16, Form.NVFP4, Form.FP8_BLOCK])
def test_kernels_may_read_whole_bands(backend, form) -> None:
    if backend.name != "cuda":
        pytest.skip("bands are a GPU's")
    for rows, multiple, room in ((42, 21, 7), (48, 24, 7), (64, 32, 0), (64, 1, 7)):
        held = backend.dummy(form, rows, 256, 1, multiple)
        assert held.data.shape[0] == rows
        assert held.data.base.shape[0] == rows + room
        if form is Form.NVFP4:
            assert held.scale.base.shape[0] == rows + room
