import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgpp.sample.head import Head, full_head
from dgpp.sample.logprobs import reportable, row_logprobs
from dgpp.sample.params import SamplingParams
from dgpp.sample.pipeline import Choice, choose, choose_greedy
from dgpp.sample.rng import uniform


def lse(logits, temperature):
    x = logits[logits > -np.inf].astype(np.float64) / temperature
    return float(x.max() + np.log(np.exp(x - x.max()).sum()))


def heads(logits, width, params):
    """The list of `width` candidates that an engine would pick from `logits`."""
    logits = np.asarray(logits, np.float32)
    temperature = params.temperature or 1.0
    present = int((logits > -np.inf).sum())
    order = sorted(np.flatnonzero(logits > -np.inf), key=lambda i: (-logits[i], i))[:width]
    ids = np.array(order, np.int32)
    return Head(ids, logits[ids], present, lse(logits, temperature), temperature)


def survivors_of(logits, params):
    """The filtered ids in canonical order and their probabilities, from the definition."""
    x = np.asarray(logits, np.float64) / params.temperature
    order = np.lexsort((np.arange(len(x)), -x))
    order = order[x[order] > -np.inf]
    if params.top_k:
        order = order[: params.top_k]

    def probabilities(ids):
        e = np.exp(x[ids] - x[ids[0]])
        return e / e.sum()

    p = probabilities(order)
    order = order[p >= params.min_p * p[0]]
    p = probabilities(order)
    if params.top_p < 1:
        order = order[: int(np.searchsorted(np.cumsum(p), params.top_p)) + 1]
        p = probabilities(order)
    return order, p


def oracle(logits, params):
    """The filtered distribution over all ids."""
    order, p = survivors_of(logits, params)
    out = np.zeros(len(logits))
    out[order] = p
    return out


VOCAB = 12
LOGITS = np.random.default_rng(7).normal(0, 1.5, VOCAB).astype(np.float32)
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7),
    SamplingParams(top_k=4),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.1),
    SamplingParams(temperature=0.8, top_k=8, min_p=0.05, top_p=0.9),
    SamplingParams(min_p=0.08, top_p=0.7),
    SamplingParams(top_k=6, top_p=0.85),
    SamplingParams(top_k=100),
]


@pytest.mark.parametrize("params", PARAMS)
def test_the_draws_have_the_filtered_distribution(params):
    draws = 20_000
    expected = oracle(LOGITS, params)
    counts = np.zeros(VOCAB)
    head = heads(LOGITS, VOCAB, params)
    for counter in range(draws):
        counts[head.ids[choose(params, head, uniform(11, counter)).rank]] += 1
    allowed = expected > 0
    assert counts[~allowed].sum() == 0
    chi2 = float(((counts - draws * expected)[allowed] ** 2 / (draws * expected[allowed])).sum())
    # Mean k and deviation sqrt(2k): five deviations, on a fixed seed.
    freedom = int(allowed.sum()) - 1
    assert chi2 <= freedom + 5 * math.sqrt(2 * freedom) + 1e-9


@pytest.mark.parametrize("params", PARAMS)
def test_logprobs_are_those_of_the_filtered_distribution(params):
    expected = oracle(LOGITS, params)
    head = heads(LOGITS, VOCAB, params)
    choice = choose(params, head, 0.5)
    reported = row_logprobs(head, choice, 20)
    survivors = int((expected > 0).sum())
    assert choice.survivors == survivors
    assert len(reported.ids) == survivors
    np.testing.assert_allclose(reported.values, np.log(expected[list(reported.ids)]), atol=2e-6)
    assert reported.values[choice.rank] == reported.logprob


def test_greedy_logprobs_are_the_raw_distributions():
    params = SamplingParams(temperature=0.0)
    head = heads(LOGITS, VOCAB, params)
    reported = row_logprobs(head, choose_greedy(head), 3)
    x = LOGITS.astype(np.float64)
    expected = x - np.log(np.exp(x).sum())
    best = np.argsort(-LOGITS, kind="stable")[:3]
    assert reported.ids == tuple(best)
    np.testing.assert_allclose(reported.values, expected[best], atol=1e-6)


def test_the_chosen_token_is_always_in_the_list():
    head = heads(LOGITS, VOCAB, SamplingParams())
    choice = Choice(9, VOCAB, head.lse)
    reported = row_logprobs(head, choice, 4)
    order = np.argsort(-LOGITS, kind="stable")
    assert reported.ids == (*order[:3], order[9])
    assert list(reported.values) == sorted(reported.values, reverse=True)
    assert row_logprobs(head, choice, 0).ids == ()


def test_ties_go_to_the_lower_id():
    logits = np.array([1, 3, 3, 0], np.float32)
    head = heads(logits, 4, SamplingParams())
    assert head.ids.tolist() == [1, 2, 0, 3]
    assert full_head(logits, 4, 4, 0.0, 1.0).ids.tolist() == [1, 2, 0, 3]
    # The cut may not part a tie.
    assert full_head(logits, 1, 4, 0.0, 1.0).ids.tolist() == [1, 2]


def test_top_p_keeps_the_token_that_crosses():
    # p = 0.5, 0.25, 0.25
    logits = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    for top_p, survivors in [(0.4, 1), (0.6, 2), (0.9, 3)]:
        params = SamplingParams(top_p=top_p)
        assert choose(params, heads(logits, 3, params), 0.0).survivors == survivors


def test_edges_of_the_cumulative_sums():
    # Two of three ids, one half each: u = 0.5 is the second's, top_p = 0.5 is met by the first.
    logits = np.array([1, 1, -50], np.float32)
    params = SamplingParams(top_k=2)
    head = heads(logits, 3, params)
    assert choose(params, head, 0.5).rank == 1
    assert choose(params, head, np.nextafter(0.5, 0)).rank == 0
    assert choose(SamplingParams(top_k=2, top_p=0.5), head, 0.9).survivors == 1
    # The same by masses under the normaliser of the whole row: exp(-ln 2) is one half exactly.
    ids = np.arange(2, dtype=np.int32)
    head = Head(ids, np.zeros(2, np.float32), 2, math.log(2), 1.0)
    assert choose(SamplingParams(), head, 0.5).rank == 1
    assert choose(SamplingParams(top_p=0.5), head, 0.9).survivors == 1


def test_the_rounding_guard_takes_the_last_candidate_with_mass():
    logits = np.array([0.0, -1.0, -2000.0], np.float32)
    params = SamplingParams()
    head = heads(logits, 3, params)
    head.lse += 1e-9  # the masses now sum to less than the largest u
    assert choose(params, head, 1 - 2**-53).rank == 1


@pytest.mark.parametrize(
    ("params", "width"),
    [
        (SamplingParams(top_k=5), 4),
        (SamplingParams(min_p=1e-6), 4),
        (SamplingParams(top_p=0.99), 2),
    ],
)
def test_a_list_too_short_says_so(params, width):
    assert choose(params, heads(LOGITS, width, params), 0.3) is None


def test_a_plain_draw_beyond_the_list_says_so():
    params = SamplingParams()
    assert choose(params, heads(LOGITS, 2, params), 0.0) is not None
    assert choose(params, heads(LOGITS, 2, params), 0.999) is None


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-300])
def test_a_temperature_near_zero_is_greedy(temperature):
    params = SamplingParams(temperature=temperature)
    order = np.argsort(-LOGITS, kind="stable").astype(np.int32)
    with np.errstate(all="ignore"):
        log_sum = float(LOGITS.max() / np.float64(temperature))
    head = Head(order, LOGITS[order], VOCAB, log_sum, temperature)
    assert choose(params, head, 0.7).rank == 0


FLOATS = st.floats(-30, 30, width=32)


@st.composite
def rows(draw):
    size = draw(st.integers(2, 300))
    seed = draw(st.integers(0, 2**32))
    spread = draw(st.sampled_from([0.1, 1.0, 4.0]))
    logits = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits)  # many ties
    for place in draw(st.lists(st.integers(0, size - 2), max_size=5)):
        logits[place] = -np.inf
    return logits


PARAMETERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.5, 1.0, 1.9]),
    top_k=st.sampled_from([0, 0, 1, 5, 64, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 1e-4, 0.1, 1.0]),
    top_p=st.sampled_from([1.0, 0.0, 0.3, 0.9, 0.999]),
)


@settings(max_examples=200, deadline=None)
@given(rows(), PARAMETERS, st.integers(1, 300), st.floats(0, 1, exclude_max=True))
def test_the_width_of_the_list_never_changes_the_token(logits, params, width, u):
    whole = heads(logits, len(logits), params)
    expected = choose(params, whole, u)
    assert expected is not None
    short = heads(logits, width, params)
    got = choose(params, short, u)
    if short.complete:
        assert got is not None
    if got is not None:
        assert got == expected
        assert short.ids[got.rank] == whole.ids[expected.rank]
        if reportable(short, got, 3):
            assert row_logprobs(short, got, 3) == row_logprobs(whole, expected, 3)
    cut = full_head(logits, width, whole.present, whole.lse, params.temperature)
    again = choose(params, cut, u)
    if again is not None:
        assert again == expected
        assert cut.ids[again.rank] == whole.ids[expected.rank]


@settings(max_examples=100, deadline=None)
@given(rows(), PARAMETERS)
def test_survivors_match_the_definition(logits, params):
    expected = len(survivors_of(logits, params)[0])
    got = choose(params, heads(logits, len(logits), params), 0.0).survivors
    # A threshold may fall on a rounding edge: one id more or less, or a run of equal logits.
    low, high = sorted((got, expected))
    order = np.sort(logits)[::-1]
    assert high - low <= 1 or np.ptp(order[low:high]) == 0
