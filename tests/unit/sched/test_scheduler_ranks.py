"""Another rank's scheduler gets what rank 0's took in, and comes to the same plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sched_drive import Driver, submit

from dgpp.sched.errors import StepOrderError
from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Refused
from dgpp.sched.request import Record
from dgpp.sched.scheduler import Scheduler

LIMITS = EngineLimits(
    slots=2,
    vocab_size=100,
    position_ceiling=40,
    block_tokens=4,
    blocks=14,
    chunk_align=4,
    chunk_limit=8,
    candidates=8,
)
REQUEST = st.tuples(
    st.integers(1, 3),  # choices
    st.integers(1, 60),  # prompt
    st.integers(1, 12),  # max_tokens
    st.sampled_from([0, 0, -3, 7]),  # priority
)
LOAD = st.lists(
    st.tuples(st.lists(REQUEST, max_size=3), st.lists(st.integers(0, 30), max_size=2)), max_size=15
)


class Leading(Driver):
    """Rank 0: hands what it took in to another rank, before it decides."""

    def __init__(self, scheduler, other):
        super().__init__(scheduler)
        self.other = other
        self.refused = 0
        scheduler.take, self._take = self.take, scheduler.take

    def take(self, record):
        before = (self.scheduler.digest(), self.scheduler.prefix_digest())
        taken = self._take(record)
        self.refused += sum(isinstance(o, Refused) for o in taken.outcomes)
        assert (self.other.scheduler.digest(), self.other.scheduler.prefix_digest()) == before
        accepted = taken.record
        step = self.other.tick(*accepted.submits, cancels=accepted.cancels, stops=accepted.stops)
        assert not any(isinstance(outcome, Refused) for outcome in self.other.outcomes)
        self.expected = step.plan
        return taken


@given(LOAD)
def test_refused_requests_leave_no_trace_on_another_rank(load):
    def scheduler():
        return Scheduler(LIMITS, queue_limit=2)

    follower = Driver(scheduler())
    leader = Leading(scheduler(), follower)
    number = 0
    for requests, cancels in load:
        submits = []
        for choices, prompt, max_tokens, priority in requests:
            for k in range(choices):
                submits.append(submit(f"r{number}-{k}", prompt, max_tokens, priority))
            number += 1
        gone = tuple(f"r{n}-{k}" for n in cancels for k in range(2))
        step = leader.tick(*submits, cancels=gone)
        assert step.plan == leader.expected
    while leader.scheduler.has_work:
        assert leader.tick().plan == leader.expected
    assert leader.answers == follower.answers
    assert leader.scheduler.digest() == follower.scheduler.digest()
    assert follower.scheduler.statistics().refused == 0
    assert leader.scheduler.statistics().refused == leader.refused


def test_a_tick_has_two_halves_in_order():
    scheduler = Scheduler(LIMITS)
    with pytest.raises(StepOrderError, match="decide before a record was taken"):
        scheduler.decide()
    scheduler.take(Record(0))
    with pytest.raises(StepOrderError, match="tick 1 while step 0 awaits"):
        scheduler.take(Record(1))
    assert scheduler.decide().plan is None
