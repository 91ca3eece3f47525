"""The device's rule (draw.cuh) compiled for the host, against dgpp.sample: the same bits."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sample_rows import candidates

from dgpp.engine.row_selection import row_draw
from dgpp.sample.exact import exp
from dgpp.sample.head import Head
from dgpp.sample.params import SamplingParams
from dgpp.sample.pipeline import choose, choose_greedy
from kernels_numba.gpu.picker import draw_table
from kernels_numba.gpu.source import FOLDER

COMPILER = shutil.which("c++")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler is installed")
    library = tmp_path_factory.mktemp("draw") / "draw.so"
    # Fused multiply-adds would be other bits.
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    source = HERE / "draw_host.cpp"
    command = [COMPILER, *flags, "-shared", "-fPIC", f"-I{FOLDER}", source, "-o", library]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.exp_of.restype = loaded.sum_of.restype = ctypes.c_double
    loaded.exp_of.argtypes = [ctypes.c_double]
    loaded.rank_of.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_double]
    return loaded


def rank_of(device, params, u, c):
    draw = replace(row_draw(0, params, 0, 0), u=u)
    table = draw_table([(draw, params.temperature, int(c.present[0]))])
    values = np.ascontiguousarray(c.logits[0])
    held, lse = int(c.held[0]), float(c.lse[0])
    return device.rank_of(table.ctypes.data, values.ctypes.data, held, lse)


def rule(params, u, c):
    held = int(c.held[0])
    temperature = 1.0 if params.greedy else params.temperature
    head = Head(
        c.ids[0, :held], c.logits[0, :held], int(c.present[0]), float(c.lse[0]), temperature
    )
    choice = choose_greedy(head) if params.greedy else choose(params, head, u)
    return -1 if choice is None else choice.rank


@settings(max_examples=300, deadline=None)
@given(st.floats(-800, 720) | st.floats(-746, -700) | st.floats(allow_nan=True))
def test_exp_has_the_same_bits(device, x):
    assert device.exp_of(x).hex() == exp(x).hex()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0.0, 1.0) | st.floats(0.0, 1e-300), max_size=255))
@example([2.0**-53, 1e-310])
@example([2.0**-53])
@example([2.0**-53, 2.0**-52])
@example([1.0] * 255)
@example([5e-324] * 255)
@example([1.0 - 2.0**-53, 2.0**-54])
def test_the_sum_is_exact(device, tail):
    weights = np.array([1.0, *tail])
    total = device.sum_of(weights.ctypes.data_as(ctypes.c_void_p), len(weights))
    assert total == math.fsum(weights)


TEMPERATURES = st.sampled_from([0.0, 0.01, 0.3, 0.7, 1.0, 1.0, 1.7, 5.0, 1e-30, 1e-38, 3e38])
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


@settings(max_examples=1500, deadline=None)
@given(
    PARAMS,
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 50, 300, 2000]),
    st.sampled_from(["flat", "usual", "sharp", "ties"]),
    st.sampled_from([1, 4, 64, 128, 256]),
    st.integers(0, 2**53 - 1) | st.sampled_from([0, 2**53 - 1]),
)
def test_picks_are_the_samplers(device, params, seed, vocab, shape, width, draw):
    c = candidates([row(seed, vocab, shape)], [params.temperature], [-1], min(width, vocab))
    u = draw * 2.0**-53
    assert rank_of(device, params, u, c) == rule(params, u, c)


def test_many_draws_of_each_kind(device):
    """Ten thousand rows, of which few are left open: a rule that gave up would not pass."""
    rng = np.random.default_rng(7)
    kinds = [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=40),
        SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        SamplingParams(temperature=1.2, min_p=0.05),
    ]
    rows = [candidates([row(number, 1000, "usual")], [1.0], [-1], 128) for number in range(100)]
    decided = 0
    for params in kinds:
        for number, c in enumerate(rows):
            # The log-sum-exp at this temperature, as an engine would state it.
            scaled = row(number, 1000, "usual").astype(np.float64) / params.temperature
            c.lse[0] = scaled.max() + np.log(np.exp(scaled - scaled.max()).sum())
            for u in rng.random(20):
                found = rank_of(device, params, u, c)
                assert found == rule(params, u, c)
                decided += found >= 0
    assert decided > 0.95 * 10_000


def test_a_row_that_makes_no_pick_holds_nothing(device):
    c = candidates([np.full(5, -np.inf)], [1.0], [-1], 4)
    assert rank_of(device, SamplingParams(), 0.5, c) == -1
