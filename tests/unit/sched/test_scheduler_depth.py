"""Plans ahead of verdicts: the answers of depth 0, whatever ends when, and nothing computed twice
but what it must."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_drive import Driver, submit

from dgpp.errors import ConfigError
from dgpp.sample.params import SamplingParams
from dgpp.sched.errors import StepOrderError, VerdictContractError
from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Began, Refused, Retired
from dgpp.sched.plan import FED, DecodeRow
from dgpp.sched.request import Record
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict

LIMITS = EngineLimits(
    slots=3,
    vocab_size=100,
    position_ceiling=256,
    block_tokens=8,
    blocks=24,
    chunk_align=16,
    chunk_limit=64,
    candidates=8,
    depth=1,
)
PENALISED = SamplingParams(presence_penalty=0.5)


def fed(*tokens, slot=0, finish=Finish.NONE, decided=True):
    return SlotVerdict(slot, tokens, finish, decided)


def test_rows_follow_ahead_of_their_verdicts_up_to_the_limit():
    s = Scheduler(LIMITS)
    assert s.tick(Record(0, (submit("a-0", 20, 3),))).plan.sampled_slots() == [0]
    assert s.may_tick
    assert s.tick(Record(1)).plan.decodes == (DecodeRow(0, 20, FED),)
    assert not s.may_tick
    assert s.apply(Verdict(0, (fed(7),))) == [Began("a-0", 0)]
    assert s.tick(Record(2)).plan.decodes == (DecodeRow(0, 21, FED),)
    assert s.apply(Verdict(1, (fed(8),))) == []
    # Step 2 gives the last token: nothing is due ahead of its verdict.
    assert not s.may_tick
    assert s.apply(Verdict(2, (fed(9, finish=Finish.LENGTH),))) == [
        Retired("a-0", Finish.LENGTH, 3)
    ]
    assert s.tick(Record(3)).plan.closes == (0,)


def test_a_row_that_ran_past_the_end_is_void_and_its_slot_is_free_at_once():
    s = Scheduler(msgspec.structs.replace(LIMITS, slots=1))
    s.tick(Record(0, (submit("a-0", 20, 30),)))
    s.tick(Record(1, (submit("b-0", 20, 30),)))
    assert s.apply(Verdict(0, (fed(99, finish=Finish.EOS),)))[-1] == Retired("a-0", Finish.EOS, 1)
    plan = s.tick(Record(2)).plan
    assert (plan.closes, plan.decodes) == ((0,), ())
    assert [o.request.id for o in plan.opens] == ["b-0"]
    # Step 1 still holds a's row, of a slot that is b's by now.
    assert s.apply(Verdict(1, (fed(),))) == []
    assert s.statistics().tokens == 1
    s.tick(Record(3))
    assert s.apply(Verdict(2, (fed(5),))) == [Began("b-0", 0)]


@pytest.mark.parametrize("how", ["cancels", "stops"])
def test_tokens_of_a_choice_that_was_ended_meanwhile_are_dropped(how):
    s = Scheduler(LIMITS)
    s.tick(Record(0, (submit("a-0", 20, 30),)))
    ended = s.tick(Record(1, **{how: ("a-0",)}))
    assert ended.outcomes[0].tokens == 0
    assert (ended.plan.closes, ended.plan.decodes) == ((0,), ())
    assert s.apply(Verdict(0, (fed(7),))) == []
    assert s.statistics().tokens == 0
    assert not s.has_work


def test_a_pick_that_the_engine_did_not_make_is_fed_again():
    s = Scheduler(LIMITS)
    s.tick(Record(0, (submit("a-0", 20, 30),)))
    s.tick(Record(1))
    s.apply(Verdict(0, (fed(7, decided=False),)))
    # Step 1 fed something else at position 20: it is read again, and what follows runs ahead.
    assert s.tick(Record(2)).plan.decodes == (DecodeRow(0, 20, 7),)
    s.apply(Verdict(1, (fed(),)))
    assert s.tick(Record(3)).plan.decodes == (DecodeRow(0, 21, FED),)
    s.apply(Verdict(2, (fed(8),)))
    assert s.statistics().tokens == 2


def test_one_row_that_needs_its_last_token_makes_the_step_wait():
    s = Scheduler(LIMITS)
    slow = submit("slow-0", 20, 9, sampling=PENALISED)
    s.tick(Record(0, (submit("a-0", 20, 9), slow)))
    assert not s.may_tick
    s.apply(Verdict(0, (fed(7), fed(8, slot=1))))
    plan = s.tick(Record(1)).plan
    assert plan.decodes == (DecodeRow(0, 20, 7), DecodeRow(1, 20, 8))
    assert not s.may_tick
    s.apply(Verdict(1, (fed(7), fed(99, slot=1, finish=Finish.EOS))))
    s.tick(Record(2))
    assert s.may_tick


@pytest.mark.parametrize(("temperature", "waits"), [(0.0, False), (1.0, True)])
def test_what_cannot_be_fed_again_runs_ahead_only_where_picks_are_sure(temperature, waits):
    s = Scheduler(msgspec.structs.replace(LIMITS, refeeds=False))
    sampling = SamplingParams(temperature=temperature)
    s.tick(Record(0, (submit("a-0", 20, 9, sampling=sampling),)))
    assert s.may_tick is not waits


def test_a_prompt_is_read_ahead_and_holds_up_nobody():
    s = Scheduler(LIMITS, prefill_budget_tokens=16)
    s.tick(Record(0, (submit("slow-0", 40, 9, sampling=PENALISED),)))
    assert s.tick(Record(1)).plan.prefills[0].start == 16
    s.apply(Verdict(0))
    assert s.tick(Record(2)).plan.prefills[0].last
    s.apply(Verdict(1))
    assert not s.may_tick


def test_order_is_enforced_on_both_sides():
    s = Scheduler(LIMITS)
    s.tick(Record(0, (submit("a-0", 20, 9),)))
    with pytest.raises(StepOrderError, match="step 0 came before the plan that is due ahead"):
        s.apply(Verdict(0, (fed(7),)))
    s.tick(Record(1))
    with pytest.raises(StepOrderError, match="tick 2 while step 1 awaits"):
        s.tick(Record(2))
    with pytest.raises(StepOrderError, match="step 1 came, awaited: step 0"):
        s.apply(Verdict(1, (fed(7),)))
    with pytest.raises(VerdictContractError, match="got 2"):
        s.apply(Verdict(0, (fed(7, 8),)))


def test_steps_of_several_tokens_are_refused_ahead_of_verdicts():
    with pytest.raises(ConfigError, match="max_drafts 2"):
        Scheduler(msgspec.structs.replace(LIMITS, max_drafts=2))


REQUEST = st.tuples(
    st.integers(1, 40),  # prompt
    st.integers(1, 12),  # max_tokens
    st.integers(0, 3),  # every how many tokens the engine makes no pick; 0: it always does
    st.booleans(),  # penalised
    st.integers(0, 14),  # the token that ends it
)
TICK = st.tuples(
    st.lists(REQUEST, max_size=2),
    st.lists(st.integers(0, 30), max_size=1),  # cancels, by number of the choice
    st.lists(st.integers(0, 30), max_size=1),  # stops
)


def play(load, depth):
    """The driver after the load; answers are functions of the choice and the token's number."""
    requests, ids = {}, []

    def token(request, produced):
        ends = requests[request.id][4]
        return [99 if produced == ends else produced + len(request.prompt) % 7]

    def picks(request, produced):
        every = requests[request.id][2]
        return not every or (produced + 1) % every != 0

    limits = msgspec.structs.replace(LIMITS, depth=depth)
    scheduler = Scheduler(limits, queue_limit=8, prefill_budget_tokens=16)
    driver = Driver(scheduler, token, picks)
    for number, (arriving, cancels, stops) in enumerate(load):
        submits = []
        for which, request in enumerate(arriving):
            choice = f"{number}.{which}-0"
            requests[choice] = request
            ids.append(choice)
            sampling = PENALISED if request[3] else SamplingParams()
            submits.append(submit(choice, request[0], request[1], sampling=sampling))
        driver.tick(
            *submits,
            cancels=tuple(ids[c] for c in cancels if c < len(ids)),
            stops=tuple(ids[c] for c in stops if c < len(ids)),
        )
        scheduler.check()
    driver.run()
    return driver, ids, requests


@settings(max_examples=120, deadline=None)
@given(st.lists(TICK, max_size=20))
def test_any_load_gives_the_answers_of_depth_0_and_ends_clean(load):
    driver, ids, requests = play(load, 1)
    statistics = driver.scheduler.statistics()
    assert (statistics.blocks_in_use, statistics.active, statistics.prefilling) == (0, 0, 0)
    ends = {o.id: o for o in driver.outcomes if isinstance(o, Retired | Refused)}
    assert sorted(ends) == sorted(ids)
    assert sum(isinstance(o, Retired | Refused) for o in driver.outcomes) == len(ids)
    undecided = 0
    for choice, end in ends.items():
        prompt, most, every, _, last = requests[choice]
        whole = [99 if n == last else n + 4 * prompt % 7 for n in range(min(most, last + 1))]
        answer = driver.answers.get(choice, [])
        assert whole[: len(answer)] == answer
        if isinstance(end, Retired) and end.reason in (Finish.EOS, Finish.LENGTH):
            assert answer == whole
            assert end.tokens == len(whole)
        undecided += len(answer) // every if every else 0
    # At most one row of a choice that ended, and one after each pick that was not made.
    assert driver.void <= len(ids) + undecided


@settings(max_examples=60, deadline=None)
@given(st.lists(TICK, max_size=20), st.sampled_from([0, 1]))
def test_the_same_records_give_the_same_operations(load, depth):
    first, second = (play(load, depth)[0] for _ in range(2))
    assert first.scheduler.digest() == second.scheduler.digest()
    assert first.outcomes == second.outcomes
