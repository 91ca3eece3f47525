"""Projections against float64 oracles, and bit for bit against themselves in other batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_oracles import (
    CAPACITY,
    E4M3,
    EXACT,
    MANY_ROWS,
    SOME_ROWS,
    bf16_rows,
    close,
    random_part,
    rows_of,
    tensor_of,
    whole_groups,
)

from kernels_numba.backend import Norm
from kernels_numba.weights import Form, Part

COUNTS = [1, 3, 4, 11, 12, 40, 64, CAPACITY]
SHAPES = [(70, 96), (5, 48), (3, 1600), (300, 704), (MANY_ROWS, 128)]
# The codes and scales of the other forms go through the same tile.
CASES = [
    (form, shape, count)
    for form in Form
    for shape in (SHAPES if form in (Form.BF16, Form.NVFP4, Form.FP8_BLOCK) else SHAPES[:4:3])
    for count in (COUNTS if shape in SHAPES[:4:3] else COUNTS[::3])
]


def reads(backend, form: Form) -> Form:
    if backend.name == "cuda" and form not in (Form.BF16, Form.NVFP4, Form.FP8_BLOCK):
        pytest.skip(f"the CUDA backend has no {form.name} matrices")
    return form


@pytest.fixture(params=list(Form), ids=lambda form: form.name)
def form(backend, request) -> Form:
    return reads(backend, request.param)


def random_rows(width: int, seed: int) -> np.ndarray:
    return bf16_rows(np.random.default_rng(seed), CAPACITY, width)


@pytest.mark.parametrize(("form", "shape", "count"), CASES)
def test_linear_is_the_product(backend, form, count, shape) -> None:
    n, k = shape[0], whole_groups(reads(backend, form), shape[1])
    part, values = random_part(form, n, k, 7)
    x, out = random_rows(k, 1), backend.tensor(n, wide=True)
    backend.linear(rows_of(backend, count), tensor_of(backend, x), backend.matrix([part]), out)
    got = backend.read(out, CAPACITY)
    close(backend, got[:count], x[:count].astype(np.float64) @ values.T, EXACT)
    assert not got[count:].any()


def test_parts_of_one_matrix_keep_their_own_scales(backend) -> None:
    """Gate and up of two experts, their global scales up to 16 times one another's."""
    parts, values = [], []
    for seed, factor in enumerate((1.0, 4.0, 0.5, 8.0)):
        part, value = random_part(Form.NVFP4, 32, 64, seed)
        parts.append(replace(part, multiplier=part.multiplier * factor))
        values.append(value * factor)
    x, out = random_rows(64, 1), backend.tensor(128, wide=True)
    backend.linear(rows_of(backend, 5), tensor_of(backend, x), backend.matrix(parts), out)
    close(backend, backend.read(out, 5), x[:5].astype(np.float64) @ np.concatenate(values).T, EXACT)


@pytest.mark.parametrize("count", [5, CAPACITY])
def test_norm_bias_and_addition_fold_in(backend, count) -> None:
    part, values = random_part(Form.BF16, 64, 80, 3)
    other, more = random_part(Form.BF16, 16, 80, 4)
    rng = np.random.default_rng(5)
    weight = rng.standard_normal(80).astype(np.float32)
    bias = rng.standard_normal(80).astype(np.float32)
    x, before = random_rows(80, 1), random_rows(80, 2)
    out = tensor_of(backend, before, wide=True)
    backend.linear(
        rows_of(backend, count),
        tensor_of(backend, x, wide=True),
        backend.matrix([part, other]),
        out,
        norm=Norm(backend.vector(weight), 1e-5),
        bias=backend.vector(bias),
        add=True,
    )
    source = x[:count].astype(np.float64)
    normed = source / np.sqrt((source**2).mean(1, keepdims=True) + 1e-5) * weight
    product = normed @ np.concatenate([values, more]).T
    close(backend, backend.read(out, count), before[:count] + product + bias)


def test_k_that_is_no_multiple_of_a_vector(backend) -> None:
    part, values = random_part(Form.BF16, 9, 37, 3)
    x, out = random_rows(37, 1), backend.tensor(9, wide=True)
    backend.linear(rows_of(backend, 6), tensor_of(backend, x), backend.matrix([part]), out)
    close(backend, backend.read(out, 6), x[:6].astype(np.float64) @ values.T, EXACT)


@pytest.mark.parametrize("count", [7, 16, 30, CAPACITY])
@pytest.mark.parametrize("n", [40, MANY_ROWS // 16 * 8])
def test_gated_is_silu_gate_times_up(backend, form, count, n) -> None:
    k = whole_groups(form, 64)
    gate, gate_values = random_part(form, n, k, 3)
    up, up_values = random_part(form, n, k, 4)
    x, out = random_rows(k, 1), backend.tensor(n)
    backend.gated(rows_of(backend, count), tensor_of(backend, x), backend.matrix([gate, up]), out)
    source = x[:count].astype(np.float64)
    g, u = source @ gate_values.T, source @ up_values.T
    close(backend, backend.read(out, count), g / (1 + np.exp(-g)) * u)


# More bands than an emulated device has blocks: then whole bands are read.
ODD = range(129, 136)


@pytest.mark.parametrize("n", ODD)
def test_rows_that_end_inside_a_band(backend, form, n) -> None:
    k = 512
    part, values = random_part(form, n, k, n)
    x, matrix = random_rows(k, 1), backend.matrix([part])
    source = tensor_of(backend, x)
    for count in (3, 12, 40, CAPACITY):
        out = backend.tensor(n, wide=True)
        backend.linear(rows_of(backend, count), source, matrix, out)
        got = backend.read(out, count)
        close(backend, got, x[:count].astype(np.float64) @ values.T, EXACT)


@pytest.mark.parametrize("n", ODD)
def test_gate_rows_that_end_inside_a_band(backend, form, n) -> None:
    """The up rows' last band ends behind the matrix."""
    if backend.name == "cuda" and form is Form.FP8_BLOCK:
        pytest.skip("the CUDA backend's FP8 parts have whole bands")
    k = 512
    gate, gate_values = random_part(form, n, k, n)
    up, up_values = random_part(form, n, k, n + 1)
    x, matrix = random_rows(k, 1), backend.matrix([gate, up])
    source = tensor_of(backend, x)
    for count in (3, 12, 40, CAPACITY):
        out = backend.tensor(n)
        backend.gated(rows_of(backend, count), source, matrix, out)
        g, u = (x[:count].astype(np.float64) @ side.T for side in (gate_values, up_values))
        close(backend, backend.read(out, count), g / (1 + np.exp(-g)) * u)


@pytest.mark.parametrize("n", [*ODD, 136])
def test_random_gate_rows_end_where_they_end(backend, n) -> None:
    for form in (Form.BF16, Form.NVFP4, Form.FP8_BLOCK):
        matrix, out = backend.dummy(form, 2 * n, 256, 1), backend.tensor(n)
        backend.gated(rows_of(backend, 3), tensor_of(backend, random_rows(256, 1)), matrix, out)
        assert np.isfinite(backend.read(out, 3)).all()


def test_a_limit_bounds_gate_and_up(backend) -> None:
    if backend.name == "cuda":
        pytest.skip("the CUDA backend has no limit yet")
    gate, gate_values = random_part(Form.BF16, 40, 64, 3)
    up, up_values = random_part(Form.BF16, 40, 64, 4)
    x, out = random_rows(64, 1), backend.tensor(40)
    x[2, 0] = np.nan
    rows = rows_of(backend, 9)
    backend.gated(rows, tensor_of(backend, x), backend.matrix([gate, up]), out, limit=4.0)
    got = backend.read(out, 9)
    assert np.isnan(got[2]).all()
    source = np.delete(x[:9], 2, axis=0).astype(np.float64)
    g = np.minimum(source @ gate_values.T, 4.0)
    u = np.clip(source @ up_values.T, -4.0, 4.0)
    assert (np.abs(u) == 4.0).any()
    assert (g == 4.0).any()
    close(backend, np.delete(got, 2, axis=0), g / (1 + np.exp(-g)) * u)


def test_norm_alone(backend) -> None:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal(300).astype(np.float32)
    x, out = random_rows(300, 6), backend.tensor(300, wide=True)
    norm = Norm(backend.vector(weight), 1e-6)
    backend.norm(rows_of(backend, CAPACITY), tensor_of(backend, x), norm, out)
    source = x.astype(np.float64)
    wanted = source / np.sqrt((source**2).mean(1, keepdims=True) + 1e-6) * weight
    close(backend, backend.read(out, CAPACITY), wanted, EXACT)


def test_join_stands_rows_side_by_side(backend) -> None:
    first, second = random_rows(24, 1), random_rows(40, 2)
    out = backend.tensor(64)
    sources = [tensor_of(backend, x) for x in (first, second)]
    backend.join(rows_of(backend, 5), *sources, out)
    np.testing.assert_array_equal(
        backend.read(out, 5), np.concatenate([first[:5], second[:5]], axis=1)
    )


# Few and many rows of weights: a GPU's kernel differs by how many blocks there are.
@pytest.mark.parametrize("shape", [(70, 96), (40, 1664), (MANY_ROWS, 192)])
def test_a_row_has_the_same_bits_in_every_batch(backend, form, shape) -> None:
    n, k = shape[0], whole_groups(form, shape[1])
    part, _ = random_part(form, n, k, 7)
    matrix = backend.matrix([part])
    x = random_rows(k, 1)
    norm = Norm(backend.vector(np.ones(k, np.float32)), 1e-5)

    def run(order: np.ndarray) -> np.ndarray:
        out = backend.tensor(n, wide=True)
        source = tensor_of(backend, x[order], wide=True)
        backend.linear(rows_of(backend, len(order)), source, matrix, out, norm=norm)
        return backend.read(out, len(order))

    together = run(np.arange(CAPACITY))
    for row in SOME_ROWS:
        np.testing.assert_array_equal(run(np.array([row]))[0], together[row])
    order = np.random.default_rng(3).permutation(CAPACITY)
    for count in [*range(2, 18), 33, 64, 65, CAPACITY]:
        np.testing.assert_array_equal(run(order[:count]), together[order[:count]])


@pytest.mark.parametrize("bands", [17, 21, 22, 33, 41, 47])
def test_what_is_left_when_blocks_have_as_much_has_the_same_bits(backend, form, bands) -> None:
    # Of FP8 a warp has several chunks, whose scales take turns in few places.
    columns = {Form.FP8_BLOCK: 3200, Form.BF12: 320}.get(form, 700)
    n, k = 8 * bands - 3, whole_groups(form, columns)
    part, _ = random_part(form, n, k, bands)
    matrix = backend.matrix([part])
    x = tensor_of(backend, random_rows(k, 1))

    def run(count: int) -> np.ndarray:
        out = backend.tensor(n, wide=True)
        backend.linear(rows_of(backend, count), x, matrix, out)
        return backend.read(out, count)

    together = run(16)
    for count in (1, 8):
        np.testing.assert_array_equal(run(count), together[:count])


@pytest.mark.parametrize("shape", [(20, 1664), (3, 330)])
@pytest.mark.parametrize("add", [False, True])
def test_few_weights_give_few_rows_the_bits_of_many(backend, shape, add) -> None:
    matrix = backend.matrix([random_part(Form.BF16, *shape, 7)[0]])
    bias = backend.vector(np.random.default_rng(5).standard_normal(shape[0]).astype(np.float32))
    x, before = random_rows(shape[1], 1), random_rows(shape[0], 2)

    def run(count: int) -> np.ndarray:
        out = tensor_of(backend, before, wide=True)
        source = tensor_of(backend, x)
        backend.linear(rows_of(backend, count), source, matrix, out, bias=bias, add=add)
        return backend.read(out, 16)

    many = run(16)
    for count in range(1, 9):
        got = run(count)
        np.testing.assert_array_equal(got[:count], many[:count])
        np.testing.assert_array_equal(got[count:], before[count:16])


def test_parts_must_agree(backend) -> None:
    first, _ = random_part(Form.BF16, 4, 32, 1)
    second, _ = random_part(Form.BF16, 4, 48, 1)
    with pytest.raises(ValueError, match="differ in form or K"):
        backend.matrix([first, second])


def test_embedding_rows_are_exact(backend, form) -> None:
    width = whole_groups(form, 64)
    part, values = random_part(form, 20, width, 9)
    rows, out = backend.rows(2, 4), backend.tensor(width, wide=True)
    rows.count = 6
    rows.tokens[:6] = [3, 0, 19, 3, 7, 1]
    backend.begin(rows)
    backend.embed(rows, backend.matrix([part]), out)
    close(backend, backend.read(out, 6), values[rows.tokens[:6]], EXACT)


def test_tokens_outside_a_slice_of_the_embedding_give_zeros(backend, form) -> None:
    width = whole_groups(form, 64)
    part, values = random_part(form, 20, width, 9)
    first, rows, out = 1000, backend.rows(2, 4), tensor_of(backend, np.ones((6, width)), wide=True)
    rows.count = 6
    rows.tokens[:6] = [1003, 999, 1019, 1020, 0, 2_000_000_000]
    backend.begin(rows)
    backend.embed(rows, backend.matrix([part]), out, first=first)
    wanted = np.zeros((6, width))
    wanted[[0, 2]] = values[[3, 19]]
    close(backend, backend.read(out, 6), wanted, EXACT)


def test_a_cut_of_a_matrix_is_the_matrix_of_the_cut(backend) -> None:
    for kind in (Form.BF16, Form.NVFP4):
        part, _ = random_part(kind, 300, 64, 9)
        x, whole, cut = random_rows(64, 1), backend.logits(2, 300), backend.logits(2, 100)
        table, source = backend.matrix([part]), tensor_of(backend, x, wide=True)
        backend.head(source, [5, 0], None, table, whole)
        backend.head(source, [5, 0], None, backend.cut(table, 70, 100), cut)
        wanted = backend.read_logits(whole, 2)[:, 70:170]
        np.testing.assert_array_equal(backend.read_logits(cut, 2), wanted)


def test_head_packs_the_rows_asked_for(backend) -> None:
    part, values = random_part(Form.BF16, 50, 64, 9)
    x, out = random_rows(64, 1), backend.logits(4, 50)
    table = backend.matrix([part])
    backend.head(tensor_of(backend, x, wide=True), [5, 0, 17], None, table, out)
    got = backend.read_logits(out, 3)
    close(backend, got, x[[5, 0, 17]].astype(np.float64) @ values.T, EXACT)


def test_the_backend_says_how_it_runs(backend) -> None:
    part, _ = random_part(Form.BF16, 64, 80, 3)
    backend.linear(
        rows_of(backend, 1), backend.tensor(80), backend.matrix([part]), backend.tensor(64)
    )
    cpu = f"cpu backend: {getattr(backend, 'threads', 0)} threads, numba's "
    expected = cpu if backend.name == "cpu" else f"cuda backend: {backend.device.name}, compute "
    # What was compiled just now is told before it.
    assert [note for note in backend.notes() if note.startswith(expected)]


def test_what_the_gpu_cannot_read_is_named(backend) -> None:
    if backend.name != "cuda":
        pytest.skip("the CPU backend reads all of it")
    part, _ = random_part(Form.NVFP4, 8, 64, 9)
    assert part.scale is not None
    part.scale[3, 1] |= 0x80
    with pytest.raises(ValueError, match="an NVFP4 scale is negative"):
        backend.matrix([part])
    odd, even = random_part(Form.FP8_BLOCK, 12, 64, 9)[0], random_part(Form.FP8_BLOCK, 8, 64, 9)[0]
    with pytest.raises(ValueError, match=r"FP8 rows 12 … 19 .* needs multiples of 8"):
        backend.matrix([odd, even])
    with pytest.raises(ValueError, match="cut at multiples of 8 rows, not 4"):
        backend.cut(backend.matrix([even]), 4, 4)


def test_fp8_scales_of_narrow_blocks_scale_their_own_columns(backend) -> None:
    """Blocks of 32 columns, as in some checkpoints and in what a cut leaves."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0x30, 0x48, (24, 160)).astype(np.uint8)
    scale = rng.uniform(0.5, 2, (3, 5)).astype(np.float32)
    matrix = backend.matrix([Part(Form.FP8_BLOCK, codes, scale, block=(8, 32))])
    values = E4M3[codes] * scale.astype(np.float64).repeat(8, axis=0).repeat(32, axis=1)
    x = random_rows(160, 1)
    for count in (1, 9, 20, CAPACITY):
        out = backend.tensor(24, wide=True)
        backend.linear(rows_of(backend, count), tensor_of(backend, x), matrix, out)
        got = backend.read(out, count)
        close(backend, got, x[:count].astype(np.float64) @ values.T, EXACT)
