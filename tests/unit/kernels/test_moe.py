"""Routing and experts against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_oracles import CAPACITY, random_part

from kernels_numba.backend import Experts, Routing
from kernels_numba.weights import Form

EXPERTS, TOP, HIDDEN, INNER = 8, 3, 64, 32


def rows_of(backend, count):
    rows = backend.rows(2, 4)
    rows.count = count
    return rows


def make(backend, form):
    gate, gate_values = random_part(Form.BF16, EXPERTS, HIDDEN, 1)
    bias = np.random.default_rng(2).standard_normal(EXPERTS).astype(np.float32)
    sides = [random_part(form, INNER, HIDDEN, 10 + i) for i in range(2 * EXPERTS)]
    downs = [random_part(form, HIDDEN, INNER, 50 + i) for i in range(EXPERTS)]
    routing = Routing(
        backend.matrix([gate]), backend.vector(bias), EXPERTS, TOP, normalise=True, scale=2.5
    )
    experts = Experts(
        backend.matrix([part for part, _ in sides]),
        backend.matrix([part for part, _ in downs]),
        INNER,
    )
    values = ([v for _, v in sides], [v for _, v in downs])
    return routing, experts, gate_values, bias, values


@pytest.mark.parametrize("form", [Form.BF16, Form.NVFP4])
@pytest.mark.parametrize("count", [1, 5, CAPACITY])
def test_moe_is_the_weighted_sum_of_its_experts(backend, form, count) -> None:
    routing, experts, gate, bias, (sides, downs) = make(backend, form)
    rng = np.random.default_rng(4)
    x, shared, out = (backend.tensor(HIDDEN) for _ in range(3))
    for tensor in (x, shared, out):
        tensor.array[:, :HIDDEN] = rng.standard_normal((CAPACITY, HIDDEN))
    before = out.array[:count, :HIDDEN].astype(np.float64)
    rows, routes = rows_of(backend, count), backend.routes(TOP)
    backend.route(rows, x, routing, routes)
    backend.moe(rows, x, experts, routes, shared, out)
    for r in range(count):
        row = x.array[r, :HIDDEN].astype(np.float64)
        score = 1 / (1 + np.exp(-(gate @ row)))
        chosen = np.sort(np.argsort(-(score + bias), kind="stable")[:TOP])
        weights = score[chosen] / (score[chosen].sum() + 1e-20) * 2.5
        np.testing.assert_array_equal(routes.ids[r], chosen)
        np.testing.assert_allclose(routes.weights[r], weights, rtol=1e-5)
        total = before[r] + shared.array[r, :HIDDEN]
        for e, weight in zip(chosen, weights, strict=True):
            g, u = sides[2 * e] @ row, sides[2 * e + 1] @ row
            total = total + weight * (downs[e] @ (g / (1 + np.exp(-g)) * u))
        got = out.array[r, :HIDDEN]
        np.testing.assert_allclose(got, total, rtol=1e-4, atol=1e-4 * np.abs(total).max())


def test_equal_scores_go_to_the_lower_expert(backend) -> None:
    routing, _, _, _, _ = make(backend, Form.BF16)
    routing = Routing(
        routing.gate,
        backend.vector(np.zeros(EXPERTS, np.float32)),
        EXPERTS,
        TOP,
        normalise=False,
        scale=1.0,
    )
    rows, routes = rows_of(backend, 2), backend.routes(TOP)
    backend.route(rows, backend.tensor(HIDDEN), routing, routes)
    np.testing.assert_array_equal(routes.ids[:2], [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(routes.weights[:2], np.full((2, TOP), 0.5, np.float32))


def test_a_row_keeps_its_bits_whoever_shares_its_experts(backend) -> None:
    routing, experts, _, _, _ = make(backend, Form.BF16)
    x = backend.tensor(HIDDEN)
    x.array[:, :HIDDEN] = np.random.default_rng(4).standard_normal((CAPACITY, HIDDEN))
    routes = backend.routes(TOP)

    def run(order):
        taken, out = backend.tensor(HIDDEN), backend.tensor(HIDDEN)
        taken.array[: len(order)] = x.array[order]
        rows = rows_of(backend, len(order))
        backend.route(rows, taken, routing, routes)
        backend.moe(rows, taken, experts, routes, None, out)
        return out.array[: len(order)].copy()

    alone = [run([r])[0] for r in range(CAPACITY)]
    for order in ([3, 1], list(range(16)), list(range(CAPACITY))[::-1]):
        for row, r in zip(run(order), order, strict=True):
            np.testing.assert_array_equal(row, alone[r])
