from hypothesis import given
from hypothesis import strategies as st

from dgpp.sched.reading import share_units

NEEDS = st.lists(st.integers(1, 40), max_size=8)


def test_equal_prompts_finish_one_after_the_other():
    assert share_units([4, 4, 4], 4, 0) == [4, 0, 0]


def test_a_short_prompt_passes_a_long_one_at_half_the_budget():
    assert share_units([100, 2, 3], 8, 0) == [4 + 0, 2, 2]
    assert share_units([100, 9], 8, 0) == [4, 4]


def test_a_single_unit_alternates_between_oldest_and_shortest():
    assert share_units([100, 2], 1, 0) == [0, 1]
    assert share_units([100, 2], 1, 1) == [1, 0]


@given(NEEDS, st.integers(1, 64), st.integers(0, 3))
def test_the_budget_is_spent_and_never_overspent(needs, units, turn):
    given_ = share_units(needs, units, turn)
    assert sum(given_) == min(units, sum(needs))
    assert all(0 <= g <= n for g, n in zip(given_, needs, strict=True))
    if needs:
        assert given_[0] >= min(needs[0], units // 2)
