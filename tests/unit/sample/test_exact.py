import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.sample.exact import exp, exp_array, log

getcontext().prec = 60


def ulps(value: float, reference: Decimal) -> float:
    return float(abs(Decimal(value) - reference) / Decimal(math.ulp(float(reference))))


@given(st.floats(-700, 700))
def test_exp_within_two_ulp(x):
    assert ulps(exp(x), Decimal(x).exp()) <= 2


@given(st.floats(1e-300, 1e300))
def test_log_within_two_ulp(x):
    if x != 1.0:
        assert ulps(log(x), Decimal(x).ln()) <= 2


@given(st.floats(0.5, 2.0))
def test_log_near_one(x):
    if x != 1.0:
        assert ulps(log(x), Decimal(x).ln()) <= 2


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
def test_arrays_have_the_scalars_bits(values):
    got = exp_array(np.array(values, np.float64))
    assert got.tolist() == [exp(v) for v in values]


@given(st.lists(st.floats(-745, 0), max_size=40))
def test_arrays_have_the_scalars_bits_where_it_matters(values):
    assert exp_array(np.array(values, np.float64)).tolist() == [exp(v) for v in values]


@pytest.mark.parametrize(
    ("x", "expected"),
    [(0.0, 1.0), (-math.inf, 0.0), (math.nan, 0.0), (-800.0, 0.0), (800.0, math.inf)],
)
def test_exp_edges(x, expected):
    assert exp(x) == expected


def test_log_edges():
    assert log(1.0) == 0.0
    assert log(0.0) == -math.inf
    assert log(math.inf) == math.inf
    assert math.isnan(log(-1.0))
    assert math.isnan(log(math.nan))


def test_pinned_bits():
    # Correctly rounded values from 60 decimal digits: another machine must give the same.
    assert exp(-1.0).hex() == float(Decimal(-1).exp()).hex()
    assert exp(-10.5).hex() == float(Decimal("-10.5").exp()).hex()
    assert log(3.0).hex() == float(Decimal(3).ln()).hex()
