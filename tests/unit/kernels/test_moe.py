"""Routing and experts against plain NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_oracles import (
    CAPACITY,
    SOME_ROWS,
    bf16_bits,
    bf16_rows,
    close,
    random_part,
    rows_of,
    tensor_of,
)

from kernels_numba.backend import Experts, Routing, Scores, SharedExperts
from kernels_numba.weights import Form, Part

EXPERTS, TOP, HIDDEN, INNER = 8, 4, 64, 32


FORMS = [Form.BF16, Form.NVFP4, Form.FP8_BLOCK]


def make(backend, form):
    if backend.name == "cuda" and form not in (Form.BF16, Form.NVFP4, Form.FP8_BLOCK):
        pytest.skip(f"the CUDA backend has no {form.name} matrices")
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("count", "add"), [(1, True), (5, False), (40, True), (CAPACITY, False)])
def test_moe_is_the_weighted_sum_of_its_experts(backend, form, count, add) -> None:
    routing, experts, gate, bias, (sides, downs) = make(backend, form)
    rng = np.random.default_rng(4)
    x, shared, before = (bf16_rows(rng, CAPACITY, HIDDEN) for _ in range(3))
    out = tensor_of(backend, before, wide=True)
    source = tensor_of(backend, x)
    rows, routes = rows_of(backend, count), backend.routes(TOP)
    backend.route(rows, source, routing, routes)
    common = tensor_of(backend, shared, wide=True)
    backend.moe(rows, source, experts, routes, common, out, add=add)
    ids, given = backend.read_routes(routes, count)
    got = backend.read(out, count)
    for r in range(count):
        row = x[r].astype(np.float64)
        score = 1 / (1 + np.exp(-(gate @ row)))
        chosen = np.sort(np.argsort(-(score + bias), kind="stable")[:TOP])
        weights = score[chosen] / (score[chosen].sum() + 1e-20) * 2.5
        np.testing.assert_array_equal(ids[r], chosen)
        if backend.name == "cpu":
            ranked = np.sort(score + bias)[::-1]
            assert routes.gaps[r] == pytest.approx(ranked[TOP - 1] - ranked[TOP], abs=1e-5)
        np.testing.assert_allclose(given[r], weights, rtol=1e-5)
        total = before[r] * float(add) + shared[r].astype(np.float64)
        for e, weight in zip(chosen, weights, strict=True):
            g, u = sides[2 * e] @ row, sides[2 * e + 1] @ row
            total = total + weight * (downs[e] @ (g / (1 + np.exp(-g)) * u))
        close(backend, got[r], total)


@pytest.mark.parametrize("form", FORMS)
def test_one_row_with_one_expert_of_many_weights(backend, form) -> None:
    """One tile and nothing beside it, of more weight rows than blocks have at once."""
    wide, number = 256, 3
    gate, gate_values = random_part(Form.BF16, number, wide, 1)
    sides = [random_part(form, wide, wide, 10 + i) for i in range(2 * number)]
    downs = [random_part(form, wide, wide, 50 + i) for i in range(number)]
    bias = backend.vector(np.zeros(number, np.float32))
    routing = Routing(backend.matrix([gate]), bias, number, 1, normalise=True, scale=1.0)
    matrices = (backend.matrix([part for part, _ in each]) for each in (sides, downs))
    experts = Experts(*matrices, wide)
    x = bf16_rows(np.random.default_rng(4), CAPACITY, wide)
    source, rows, routes = tensor_of(backend, x), rows_of(backend, 1), backend.routes(1)
    out = backend.tensor(wide, wide=True)
    backend.route(rows, source, routing, routes)
    backend.moe(rows, source, experts, routes, None, out)
    row = x[0].astype(np.float64)
    chosen = int(np.argmax(gate_values @ row))
    gates, ups = (sides[2 * chosen + i][1] @ row for i in range(2))
    expected = downs[chosen][1] @ (gates / (1 + np.exp(-gates)) * ups)
    close(backend, backend.read(out, 1)[0], expected)


@pytest.mark.parametrize("odd", range(1, 8))
@pytest.mark.parametrize("count", [1, 8, 40, CAPACITY])
def test_experts_of_odd_sizes(backend, odd, count) -> None:
    """An expert's last bands end inside the next expert's, and behind the matrix."""
    number, hidden, inner = 3, 96 + odd, 72 + odd
    sides = [random_part(Form.BF16, inner, hidden, 10 + i) for i in range(2 * number)]
    downs = [random_part(Form.BF16, hidden, inner, 50 + i) for i in range(number)]
    gate, gate_values = random_part(Form.BF16, number, hidden, 1)
    bias = backend.vector(np.zeros(number, np.float32))
    routing = Routing(backend.matrix([gate]), bias, number, number, normalise=True, scale=1.0)
    experts = Experts(
        backend.matrix([part for part, _ in sides]),
        backend.matrix([part for part, _ in downs]),
        inner,
    )
    x = bf16_rows(np.random.default_rng(4), CAPACITY, hidden)
    source, rows, routes = tensor_of(backend, x), rows_of(backend, count), backend.routes(number)
    out = backend.tensor(hidden, wide=True)
    backend.route(rows, source, routing, routes)
    backend.moe(rows, source, experts, routes, None, out)
    given = x[:count].astype(np.float64)
    score = 1 / (1 + np.exp(-(given @ gate_values.T)))
    total = np.zeros((count, hidden))
    for e, weight in enumerate((score / (score.sum(1, keepdims=True) + 1e-20)).T):
        g, u = (given @ sides[2 * e + i][1].T for i in range(2))
        total += weight[:, None] * ((g / (1 + np.exp(-g)) * u) @ downs[e][1].T)
    close(backend, backend.read(out, count), total)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inner", [INNER, 2 * INNER])
@pytest.mark.parametrize("count", [1, 8, 9])
def test_shared_experts_have_the_bits_of_their_projections(backend, form, inner, count) -> None:
    routing, experts, _, _, _ = make(backend, form)
    sides = [random_part(form, inner, HIDDEN, 90 + i)[0] for i in range(2)]
    down = random_part(form, HIDDEN, inner, 92)[0]
    shared = SharedExperts(backend.matrix(sides), backend.matrix([down]))
    rng = np.random.default_rng(5)
    source = tensor_of(backend, bf16_rows(rng, CAPACITY, HIDDEN))
    before = bf16_rows(rng, CAPACITY, HIDDEN)
    rows, routes = rows_of(backend, count), backend.routes(TOP)
    act, given = backend.tensor(inner), backend.tensor(HIDDEN, wide=True)
    backend.route(rows, source, routing, routes)
    apart, together = (tensor_of(backend, before, wide=True) for _ in range(2))
    backend.gated(rows, source, shared.gate_up, act)
    backend.linear(rows, act, shared.down, given)
    backend.moe(rows, source, experts, routes, given, apart)
    room = (backend.tensor(inner), backend.tensor(HIDDEN, wide=True))
    backend.moe_shared(rows, source, experts, routes, shared, room, together)
    np.testing.assert_array_equal(backend.read(together, count), backend.read(apart, count))
    assert np.abs(backend.read(given, count)).max() > 0.01


@pytest.mark.parametrize("named", [False, True])
def test_other_scores_tables_and_weights_inside(extended, named) -> None:
    routing, experts, gate, bias, (sides, downs) = make(extended, Form.BF16)
    rng = np.random.default_rng(4)
    x = bf16_rows(rng, 9, HIDDEN)
    table = np.stack([rng.permutation(EXPERTS)[:TOP] for _ in range(9)]).astype(np.int32)
    routing = replace(
        routing,
        scores=Scores.SQRT_SOFTPLUS,
        bias=None if named else routing.bias,
        table=extended.integers(table) if named else None,
    )
    experts = replace(experts, weigh_inside=True)
    rows, routes = extended.rows(2, 4), extended.routes(TOP)
    rows.count = 9
    rows.tokens[:9] = np.arange(9)[::-1]
    extended.begin(rows)
    source, out = tensor_of(extended, x), extended.tensor(HIDDEN, wide=True)
    extended.route(rows, source, routing, routes)
    extended.moe(rows, source, experts, routes, None, out, add=False)
    ids, given = extended.read_routes(routes, 9)
    got = extended.read(out, 9)
    for r in range(9):
        row = x[r].astype(np.float64)
        score = np.sqrt(np.log1p(np.exp(gate @ row)))
        chosen = np.sort(np.argsort(-(score + bias), kind="stable")[:TOP])
        if named:
            chosen = np.sort(table[8 - r])
        weights = score[chosen] / (score[chosen].sum() + 1e-20) * 2.5
        np.testing.assert_array_equal(ids[r], chosen)
        np.testing.assert_allclose(given[r], weights, rtol=1e-5)
        total = np.zeros(HIDDEN)
        for e, weight in zip(chosen, weights, strict=True):
            g, u = sides[2 * e] @ row, sides[2 * e + 1] @ row
            total = total + downs[e] @ (weight * (g / (1 + np.exp(-g)) * u))
        close(extended, got[r], total)


def test_shares_of_all_experts(extended) -> None:
    routing, _, gate, _, _ = make(extended, Form.BF16)
    x = bf16_rows(np.random.default_rng(4), 9, HIDDEN)
    routing = replace(routing, scores=Scores.SOFTMAX, bias=None, scale=1.0)
    rows, routes = rows_of(extended, 9), extended.routes(TOP)
    extended.route(rows, tensor_of(extended, x), routing, routes)
    ids, given = extended.read_routes(routes, 9)
    for r in range(9):
        share = np.exp(gate @ x[r].astype(np.float64))
        share /= share.sum()
        chosen = np.sort(np.argsort(-share, kind="stable")[:TOP])
        np.testing.assert_array_equal(ids[r], chosen)
        np.testing.assert_allclose(given[r], share[chosen] / share[chosen].sum(), rtol=1e-5)


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
    ids, weights = backend.read_routes(routes, 2)
    np.testing.assert_array_equal(ids, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(weights, np.full((2, TOP), 0.5, np.float32))


@pytest.mark.parametrize("number", [70, 160, 200, 300])
def test_many_experts_of_which_many_are_alike(backend, number) -> None:
    """Ties within and across what a lane of a GPU holds; there, too few finite choices as well."""
    rng = np.random.default_rng(6)
    gate = rng.integers(-1, 2, (number, HIDDEN)).astype(np.float32)
    x = np.eye(HIDDEN, dtype=np.float32)[rng.integers(0, HIDDEN, CAPACITY)]
    alike = rng.choice(np.array([0, 0.25, -2.0], np.float32), number)
    few = alike.copy()
    few[rng.permutation(number)[6:]] = -np.inf
    sides = random_part(Form.BF16, 2 * INNER * number, HIDDEN, 7)[0]
    downs = random_part(Form.BF16, HIDDEN * number, INNER, 8)[0]
    experts = Experts(backend.matrix([sides]), backend.matrix([downs]), INNER)
    router = backend.matrix([Part(Form.BF16, bf16_bits(gate))])
    for choices in (alike, few) if backend.name == "cuda" else (alike,):
        bias = backend.vector(choices)
        routing = Routing(router, bias, number, 8, normalise=True, scale=1.5)
        score = 1 / (1 + np.exp(-(x.astype(np.float64) @ gate.T)))
        chosen = np.sort(np.argsort(-(score + choices), axis=1, kind="stable")[:, :8], axis=1)
        routes, source = backend.routes(8), tensor_of(backend, x)
        many = None
        for count in (20, 17, 16, 5, 2, 1):
            rows, out = rows_of(backend, count), backend.tensor(HIDDEN, wide=True)
            backend.route(rows, source, routing, routes)
            backend.moe(rows, source, experts, routes, None, out)
            ids, weights = backend.read_routes(routes, count)
            np.testing.assert_array_equal(ids, chosen[:count])
            taken = np.take_along_axis(score[:count], chosen[:count], axis=1)
            given = 1.5 * taken / taken.sum(axis=1, keepdims=True)
            np.testing.assert_allclose(weights, given, rtol=1e-5)
            got = np.concatenate([weights, backend.read(out, count)], axis=1)
            many = got if many is None else many
            np.testing.assert_array_equal(got, many[:count])


@pytest.mark.parametrize("form", FORMS)
def test_a_row_keeps_its_bits_whoever_shares_its_experts(backend, form) -> None:
    routing, experts, _, _, _ = make(backend, form)
    x = bf16_rows(np.random.default_rng(4), CAPACITY, HIDDEN)
    routes = backend.routes(TOP)

    def run(order):
        taken, out = tensor_of(backend, x[order]), backend.tensor(HIDDEN, wide=True)
        rows = rows_of(backend, len(order))
        backend.route(rows, taken, routing, routes)
        backend.moe(rows, taken, experts, routes, None, out)
        return backend.read(out, len(order))

    together = run(list(range(CAPACITY)))
    alone = ([row] for row in SOME_ROWS)
    for order in (*alone, [3, 1], list(range(16)), list(range(CAPACITY))[::-1]):
        np.testing.assert_array_equal(run(order), together[order])
