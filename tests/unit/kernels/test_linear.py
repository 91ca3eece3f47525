"""Projections against float64 oracles, and bit for bit against themselves in other batches."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, random_part

from kernels_numba.backend import Norm
from kernels_numba.weights import Form

FORMS = [Form.F32, Form.BF16, Form.NVFP4]


def rows_of(backend, count):
    rows = backend.rows(2, 4)
    rows.count = count
    return rows


def random_rows(backend, width, seed):
    x = backend.tensor(width)
    x.array[:, :width] = np.random.default_rng(seed).standard_normal((CAPACITY, width))
    return x


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 3, 4, 11, 12, CAPACITY])
@pytest.mark.parametrize("shape", [(70, 96), (5, 48), (3, 1600)])
def test_linear_is_the_product(backend, form, count, shape) -> None:
    n, k = shape
    part, values = random_part(form, n, k, 7)
    x, out = random_rows(backend, k, 1), backend.tensor(n)
    backend.linear(rows_of(backend, count), x, backend.matrix([part]), out)
    close(out.array[:count, :n], x.array[:count, :k].astype(np.float64) @ values.T)
    assert not out.array[count:].any()


def test_norm_bias_and_addition_fold_in(backend) -> None:
    part, values = random_part(Form.BF16, 64, 80, 3)
    other, more = random_part(Form.BF16, 16, 80, 4)
    rng = np.random.default_rng(5)
    weight = rng.standard_normal(80).astype(np.float32)
    bias = rng.standard_normal(80).astype(np.float32)
    x, out = random_rows(backend, 80, 1), random_rows(backend, 80, 2)
    before = out.array[:5, :80].astype(np.float64)
    backend.linear(
        rows_of(backend, 5),
        x,
        backend.matrix([part, other]),
        out,
        norm=Norm(backend.vector(weight), 1e-5),
        bias=backend.vector(bias),
        add=True,
    )
    source = x.array[:5, :80].astype(np.float64)
    normed = source / np.sqrt((source**2).mean(1, keepdims=True) + 1e-5) * weight
    close(out.array[:5, :80], before + normed @ np.concatenate([values, more]).T + bias)


def test_k_that_is_no_multiple_of_a_vector(backend) -> None:
    part, values = random_part(Form.BF16, 9, 37, 3)
    x, out = random_rows(backend, 37, 1), backend.tensor(9)
    backend.linear(rows_of(backend, 6), x, backend.matrix([part]), out)
    close(out.array[:6, :9], x.array[:6, :37].astype(np.float64) @ values.T)


@pytest.mark.parametrize("form", FORMS)
def test_gated_is_silu_gate_times_up(backend, form) -> None:
    gate, gate_values = random_part(form, 40, 64, 3)
    up, up_values = random_part(form, 40, 64, 4)
    x, out = random_rows(backend, 64, 1), backend.tensor(40)
    backend.gated(rows_of(backend, 7), x, backend.matrix([gate, up]), out)
    source = x.array[:7, :64].astype(np.float64)
    g, u = source @ gate_values.T, source @ up_values.T
    close(out.array[:7, :40], g / (1 + np.exp(-g)) * u)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_every_batch(backend, form) -> None:
    part, _ = random_part(form, 70, 96, 7)
    matrix = backend.matrix([part])
    x = random_rows(backend, 96, 1)
    norm = Norm(backend.vector(np.ones(96, np.float32)), 1e-5)
    alone = []
    for r in range(CAPACITY):
        single, out = backend.tensor(96), backend.tensor(70)
        single.array[0] = x.array[r]
        backend.linear(rows_of(backend, 1), single, matrix, out, norm=norm)
        alone.append(out.array[0].copy())
    order = np.random.default_rng(3).permutation(CAPACITY)
    for count in [*range(2, 17), CAPACITY]:
        shuffled, out = backend.tensor(96), backend.tensor(70)
        shuffled.array[:] = x.array[order]
        backend.linear(rows_of(backend, count), shuffled, matrix, out, norm=norm)
        for place in range(count):
            np.testing.assert_array_equal(out.array[place], alone[order[place]])


def test_parts_must_agree(backend) -> None:
    first, _ = random_part(Form.BF16, 4, 32, 1)
    second, _ = random_part(Form.BF16, 4, 48, 1)
    with pytest.raises(ValueError, match="differ in form or K"):
        backend.matrix([first, second])


def test_embedding_rows_are_exact(backend) -> None:
    for form in FORMS:
        part, values = random_part(form, 20, 64, 9)
        rows, out = rows_of(backend, 6), backend.tensor(64)
        rows.tokens[:6] = [3, 0, 19, 3, 7, 1]
        backend.embed(rows, backend.matrix([part]), out)
        close(out.array[:6, :64], values[rows.tokens[:6]])


def test_head_packs_the_rows_asked_for(backend) -> None:
    part, values = random_part(Form.BF16, 50, 64, 9)
    x = random_rows(backend, 64, 1)
    out = np.zeros((3, 50), np.float32)
    backend.head(x, [5, 0, 17], None, backend.matrix([part]), out)
    close(out, x.array[[5, 0, 17], :64].astype(np.float64) @ values.T)


def test_the_backend_says_how_it_runs(backend) -> None:
    backend.begin()
    part, _ = random_part(Form.BF16, 64, 80, 3)
    backend.linear(
        rows_of(backend, 1), backend.tensor(80), backend.matrix([part]), backend.tensor(64)
    )
    assert backend.notes()[0].startswith(f"cpu backend: {backend.threads} threads, numba's ")
