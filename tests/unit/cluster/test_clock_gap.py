"""Clocks of other machines: never further off than they are, and logs in the order of what was."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpp.cluster.clock_gap import ClockGap
from dgpp.cluster.logs import Merge
from dgpp.log import timestamp

SECONDS = st.floats(0, 2, allow_nan=False)


@given(
    st.floats(-1e5, 1e5, allow_nan=False),
    st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8),
)
def test_what_is_known_of_a_gap_holds(gap, questions):
    found, now = ClockGap(), 1.8e9
    for waits, there, back in questions:
        before = now + waits
        found.narrow(before, before + there + gap, before + there + back)
        now = before + there + back
    # Clocks are read in steps of some 1e-7 s so long after 1970.
    slack = 1e-5
    assert found.least - slack <= gap <= found.most + slack
    assert abs(found.sure) <= abs(gap) + slack
    assert found.sure * gap >= 0 or abs(gap) < slack
    widest = min(there + back for _, there, back in questions)
    if found.sure:
        assert abs(found.likely - gap) <= widest / 2 + slack


def test_a_clock_that_is_set_is_measured_anew():
    found = ClockGap()
    assert (found.sure, found.likely) == (0.0, 0.0)
    found.narrow(100.0, 105.0, 101.0)
    assert (found.sure, found.likely) == (4.0, 4.5)
    found.narrow(200.0, 200.5, 201.0)
    assert (found.sure, found.likely) == (0.0, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5_000)), max_size=40),
    st.tuples(*[st.integers(-3_000, 3_000)] * 3),
    st.lists(st.integers(0, 6_000), max_size=6).map(sorted),
)
def test_lines_of_skewed_clocks_come_as_they_were_said(said, ahead_ms, rounds):
    """Each line is `true moment, rank`; a reader sees, in each round, what was said by then."""
    base = 1.8e9
    events = sorted({(moment, rank) for rank, moment in said})
    merge = Merge(named=False)
    shown, seen = [], 0
    for asked in [*rounds, 10_000]:
        texts = {0: "", 1: "", 2: ""}
        while seen < len(events) and events[seen][0] <= asked:
            moment, rank = events[seen]
            stamp = timestamp(base + (moment + ahead_ms[rank]) / 1e3)
            texts[rank] += f"{stamp} INFO {moment} {rank}\n  more\n"
            seen += 1
        ahead = {rank: ms / 1e3 for rank, ms in enumerate(ahead_ms)}
        until = math.inf if asked == 10_000 else base + asked / 1e3 - 0.002
        shown += merge.add(texts, ahead, until)
    assert shown[1::2] == ["  more"] * len(events)
    found = [tuple(map(int, line.split()[2:])) for line in shown[::2]]
    assert sorted(found) == events
    # Stamps are cut to milliseconds.
    moments = [moment for moment, _ in found]
    assert all(later >= earlier - 1 for earlier, later in pairwise(moments))


def test_a_moment_that_makes_no_sense_is_that_of_the_line_before():
    merge = Merge(named=True)
    texts = {0: "2026-02-31T00:00:00Z odd\nno stamp\n", 1: '{"ts": "2026-01-01T00:00:00Z"}\n'}
    assert merge.add(texts, {}, math.inf) == [
        "[0] 2026-02-31T00:00:00Z odd",
        "[0] no stamp",
        '[1] {"ts": "2026-01-01T00:00:00Z"}',
    ]
    assert merge.add({0: "after all\n"}, {}, math.inf) == ["[0] after all"]


@pytest.mark.parametrize(
    "stamp", ["<6>2026-01-01T00:00:00.5Z x", '{"ts":"2026-01-01T00:00:00.5Z"}']
)
def test_stamps_are_read_in_every_form_that_is_written(stamp):
    merge = Merge(named=False)
    merge.add({0: "2026-01-01T00:00:00.4Z earlier\n"}, {}, math.inf)
    texts = {0: "2026-01-01T00:00:00.6Z later\n", 1: f"{stamp}\n"}
    assert merge.add(texts, {}, math.inf)[0] == stamp
