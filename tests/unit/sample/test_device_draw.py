"""The device's rule (draw.cuh), its kernels run on the host, against dgpp.sample: the same bits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from emulator.kernels import EmulatedKernels, compiler
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_rows import candidates

from dgpp.engine.row_selection import row_draw
from dgpp.sample.exact import exp
from dgpp.sample.head import Head
from dgpp.sample.params import SamplingParams
from dgpp.sample.pipeline import choose, choose_greedy
from kernels_numba.gpu.picker import DRAW_THREADS, draw_table
from kernels_numba.gpu.source import STEP, Unit

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")

PROBES = """
extern "C" __global__ void probe_exp(const double* x, double* out) { out[0] = exact_exp(x[0]); }

extern "C" __global__ void probe_sum(const double* weights, i64 count, double* out) {
    __shared__ DrawScratch scratch;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) scratch.weights[i] = weights[i];
    const double total = exact_sum(scratch, static_cast<int>(count));
    if (threadIdx.x == 0) out[0] = total;
}
"""


@pytest.fixture(scope="module")
def probe():
    """Launches a kernel of step.cu or one of the probes; arrays are passed as they are."""
    with pytest.MonkeyPatch.context() as patch:
        text = STEP.text + PROBES
        patch.setattr("kernels_numba.gpu.source.source", lambda _: text)
        unit, kernels = Unit("step", (("PROBES", 1),)), EmulatedKernels()

        def launch(name, grid, threads, *arguments):
            passed = [a if isinstance(a, int) else a.ctypes.data for a in arguments]
            kernels.launch(unit, name, (grid,), threads, tuple(passed))

        yield launch


def draw(probe, asked, found):
    """The picks of rows: `asked` are (parameters, u), `found` their candidates of one width."""
    rows = len(asked)
    table = draw_table(
        [
            (replace(row_draw(r, params, 0, 0), u=u), params.temperature, int(c.present[0]))
            for r, ((params, u), c) in enumerate(zip(asked, found, strict=True))
        ]
    )
    ids, values = (np.concatenate([getattr(c, name) for c in found]) for name in ("ids", "logits"))
    held, lse = (np.concatenate([getattr(c, name) for c in found]) for name in ("held", "lse"))
    picked, kept = np.full(rows, -9, np.int32), np.full(rows, -9, np.int32)
    began, times = np.array([5], np.uint64), np.zeros(2, np.uint64)
    probe(
        "draw_rows", rows, DRAW_THREADS, table, ids.shape[1], ids, values, held, lse, picked, kept,
        began, times,
    )  # fmt: skip
    assert times[0] == 5
    assert times[1] > 0
    # What the next step feeds is the pick, or at least some id.
    assert (kept[picked >= 0] == picked[picked >= 0]).all()
    assert (kept >= 0).all()
    return picked.tolist()


def rule(params, u, c):
    held = int(c.held[0])
    temperature = 1.0 if params.greedy else params.temperature
    head = Head(
        c.ids[0, :held], c.logits[0, :held], int(c.present[0]), float(c.lse[0]), temperature
    )
    choice = choose_greedy(head) if params.greedy else choose(params, head, u)
    return -1 if choice is None else int(head.ids[choice.rank])


@settings(max_examples=150, deadline=None)
@given(st.floats(-800, 720) | st.floats(-746, -700) | st.floats(allow_nan=True))
def test_exp_has_the_same_bits(probe, x):
    out = np.zeros(1)
    probe("probe_exp", 1, 1, np.array([x]), out)
    assert float(out[0]).hex() == exp(x).hex()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.0, 1.0) | st.floats(0.0, 1e-300), max_size=255))
@example([2.0**-53, 1e-310])
@example([2.0**-53])
@example([2.0**-53, 2.0**-52])
@example([1.0] * 255)
@example([5e-324] * 255)
@example([1.0 - 2.0**-53, 2.0**-54])
def test_the_sum_is_exact(probe, tail):
    weights, out = np.array([1.0, *tail]), np.zeros(1)
    probe("probe_sum", 1, 32, weights, len(weights), out)
    assert out[0] == math.fsum(weights)


TEMPERATURES = st.sampled_from([0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.7, 5.0, 1e-30, 1e-40, 3e38])
PARAMS = st.builds(
    SamplingParams,
    temperature=TEMPERATURES,
    top_k=st.sampled_from([0, 0, 0, 1, 2, 5, 40, 128, 500, 4000]),
    min_p=st.sampled_from([0.0, 0.0, 0.0, 1e-9, 0.01, 0.05, 0.3, 1.0]),
    top_p=st.sampled_from([1.0, 1.0, 1.0, 0.0, 1e-6, 0.1, 0.5, 0.9, 0.95, 0.99, 1 - 1e-12]),
)


def row(seed, vocab, shape):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, {"flat": 0.2, "usual": 3.0, "sharp": 30.0, "ties": 1.0}[shape], vocab)
    if shape == "ties":
        logits = np.round(logits)
    return logits.astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 4, 64, 128, 256]),
    st.lists(
        st.tuples(
            PARAMS,
            st.integers(0, 2**32),
            st.sampled_from([1, 3, 50, 300, 2000]),
            st.sampled_from(["flat", "usual", "sharp", "ties"]),
            st.integers(0, 2**53 - 1) | st.sampled_from([0, 2**53 - 1]),
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_picks_are_the_samplers(probe, width, rows):
    asked = [(params, number * 2.0**-53) for params, _, _, _, number in rows]
    found = [
        candidates([row(seed, vocab, shape)], [params.temperature], [-1], width)
        for params, seed, vocab, shape, _ in rows
    ]
    wanted = [rule(params, u, c) for (params, u), c in zip(asked, found, strict=True)]
    assert draw(probe, asked, found) == wanted


def test_many_draws_of_each_kind(probe):
    """Few of thousands of rows are left open: a rule that gave up would not pass."""
    rng = np.random.default_rng(7)
    kinds = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=40),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        SamplingParams(temperature=1.2, min_p=0.05),
    ]
    asked, found = [], []
    for number in range(100):
        for params in kinds:
            logits = row(number, 1000, "usual")
            c = candidates([logits], [params.temperature], [-1], 128)
            for u in rng.random(8):
                asked.append((params, u))
                found.append(c)
    picks = draw(probe, asked, found)
    assert picks == [rule(params, u, c) for (params, u), c in zip(asked, found, strict=True)]
    assert sum(pick >= 0 for pick in picks) > 0.95 * len(picks)


def test_a_row_without_ids_or_without_a_slot_makes_no_pick(probe):
    empty = candidates([np.full(5, -np.inf)], [1.0], [-1], 4)
    assert draw(probe, [(SamplingParams(), 0.5)], [empty]) == [-1]
    whole = candidates([row(1, 5, "usual")], [1.0], [-1], 4)
    table = draw_table([(None, 1.0, 5)])
    picked, kept = np.full(1, -9, np.int32), np.full(1, 7, np.int32)
    clock = np.zeros(3, np.uint64)
    probe(
        "draw_rows", 1, DRAW_THREADS, table, 4, whole.ids, whole.logits, whole.held, whole.lse,
        picked, kept, clock, clock[1:],
    )  # fmt: skip
    assert (picked[0], kept[0]) == (-1, 7)


def test_a_step_begins_with_the_last_picks_of_its_slots(probe):
    words = np.array([[3, -1, -1, 0], [7, 8, 9, 10], [0, 2, 1, 3]], np.int32)
    tokens, positions, slots = (np.full(4, -9, np.int32) for _ in range(3))
    picks = np.array([10, 11, 12, 13], np.int32)
    began = np.zeros(1, np.uint64)
    probe("begin_step", 1, 256, words, 4, tokens, positions, slots, picks, began)
    assert tokens.tolist() == [3, 12, 11, 0]
    assert positions.tolist() == [7, 8, 9, 10]
    assert slots.tolist() == [0, 2, 1, 3]
    assert began[0] > 0
