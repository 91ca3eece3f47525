import pytest
from sched_drive import Driver, submit

from dgpp.errors import ConfigError
from dgpp.sched.errors import StepOrderError, SubmitContractError, VerdictContractError
from dgpp.sched.limits import EngineLimits
from dgpp.sched.outcomes import Admitted, Began, Refused, Retired
from dgpp.sched.plan import DecodeRow, PrefillChunk
from dgpp.sched.request import Record, Submit, pack_ids
from dgpp.sched.scheduler import Scheduler
from dgpp.sched.verdict import Finish, SlotVerdict, Verdict

LIMITS = EngineLimits(
    slots=2,
    vocab_size=100,
    position_ceiling=256,
    block_tokens=8,
    blocks=24,
    chunk_align=16,
    chunk_limit=64,
    candidates=8,
)


def test_the_life_of_one_request():
    s = Scheduler(LIMITS, prefill_budget_tokens=16)
    step = s.tick(Record(0, (submit("a-0", 20, 3),)))
    # 23 positions in blocks of 8.
    assert step.outcomes == [Admitted("a-0", 0, 20, 0, 3)]
    assert step.plan.opens[0].blocks == (0, 1, 2)
    assert step.plan.prefills == (PrefillChunk(0, 0, 16, last=False),)
    assert step.plan.sampled_slots() == []
    assert s.apply(Verdict(0)) == []

    step = s.tick(Record(1))
    assert step.plan.prefills == (PrefillChunk(0, 16, 4, last=True),)
    assert s.apply(Verdict(1, (SlotVerdict(0, (7,)),))) == [Began("a-0", 0)]

    step = s.tick(Record(2))
    assert step.plan.decodes == (DecodeRow(0, 20, 7),)
    done = s.apply(Verdict(2, (SlotVerdict(0, (8, 9), Finish.LENGTH),)))
    assert done == [Retired("a-0", Finish.LENGTH, 3)]
    stats = s.statistics()
    assert (stats.blocks_in_use, stats.active, stats.tokens, stats.prompt_tokens) == (0, 0, 3, 20)
    assert s.idle
    assert s.has_work

    plan = s.tick(Record(3)).plan
    assert (plan.closes, plan.opens, plan.decodes) == ((0,), (), ())
    s.apply(Verdict(3))
    assert s.tick(Record(4)).plan is None
    assert not s.has_work


def test_a_slot_is_closed_and_reopened_by_one_plan():
    d = Driver(Scheduler(LIMITS))
    d.tick(submit("a-0", 4, 1), submit("b-0", 4, 9), submit("c-0", 4, 1))
    step = d.tick()
    assert step.plan.closes == (0,)
    assert [o.request.id for o in step.plan.opens] == ["c-0"]
    assert step.plan.opens[0].slot == 0


def test_prompts_and_decodes_share_a_step_under_the_busy_budget():
    d = Driver(Scheduler(LIMITS, prefill_budget_tokens=16, prefill_idle_budget_tokens=64))
    step = d.tick(submit("a-0", 40, 9))
    assert step.plan.prefills == (PrefillChunk(0, 0, 40, last=True),)
    step = d.tick(submit("b-0", 40, 9))
    assert step.plan.prefills == (PrefillChunk(1, 0, 16, last=False),)
    assert [r.slot for r in step.plan.decodes] == [0]


@pytest.mark.parametrize("reason", [Finish.CANCELLED, Finish.STOP])
def test_end_from_outside_in_each_phase(reason):
    key = "cancels" if reason is Finish.CANCELLED else "stops"
    d = Driver(Scheduler(LIMITS, prefill_budget_tokens=16))
    d.tick(submit("active-0", 4, 50), submit("reading-0", 120, 5), submit("queued-0", 4, 5))
    assert d.scheduler.statistics().queued == 1
    # Named in another order than they arrived in.
    step = d.tick(**{key: ("queued-0", "nobody-0", "reading-0", "active-0")})
    ended = [o for o in step.outcomes if isinstance(o, Retired)]
    assert ended == [
        Retired("active-0", reason, 1),
        Retired("reading-0", reason, 0),
        Retired("queued-0", reason, 0),
    ]
    assert step.plan.closes == (0, 1)
    assert d.scheduler.statistics().blocks_in_use == 0
    assert not d.scheduler.has_work


def test_a_cancel_that_comes_after_the_end_is_ignored():
    d = Driver(Scheduler(LIMITS))
    d.tick(submit("a-0", 4, 1))
    step = d.tick(cancels=("a-0",), stops=("a-0",))
    assert step.outcomes == []
    assert d.scheduler.statistics().retired[Finish.LENGTH] == 1


def test_a_cancel_beside_its_own_submit_ends_it_once():
    s = Scheduler(LIMITS, queue_limit=1)
    step = s.tick(Record(0, (submit("a-0", 4, 1),), cancels=("a-0",)))
    assert step.outcomes == [Retired("a-0", Finish.CANCELLED, 0)]
    assert step.plan is None


def test_cancel_wins_over_stop():
    d = Driver(Scheduler(LIMITS))
    d.tick(submit("a-0", 4, 9))
    assert d.tick(cancels=("a-0",), stops=("a-0",)).outcomes == [
        Retired("a-0", Finish.CANCELLED, 1)
    ]


def test_the_queue_limit_counts_only_those_who_must_wait():
    d = Driver(Scheduler(LIMITS, queue_limit=2))
    step = d.tick(*(submit(f"r{i}-0", 4, 9) for i in range(5)))
    assert [o.id for o in step.outcomes if isinstance(o, Admitted)] == ["r0-0", "r1-0"]
    refused = [o for o in step.outcomes if isinstance(o, Refused)]
    assert [(o.id, o.code) for o in refused] == [("r4-0", "overloaded")]
    assert "2 choices wait, the limit is 2" in refused[0].message


def test_who_can_start_at_once_passes_a_full_queue_of_those_who_fit_nowhere():
    d = Driver(Scheduler(LIMITS, queue_limit=1))
    d.tick(submit("live-0", 60, 68))  # 16 of 24 blocks
    d.tick(submit("large-0", 70, 10))  # 10 blocks: waits
    for number in range(32):
        d.tick(submit(f"small{number}-0", 4, 1))
        assert d.admitted[-1] == f"small{number}-0"
    # The large one has been passed often enough: now newcomers would have to wait behind it.
    step = d.tick(submit("small32-0", 4, 1))
    assert [type(o) for o in step.outcomes] == [Refused]
    assert d.scheduler.statistics().queued == 1


def test_a_full_queue_refuses_even_while_slots_come_free():
    d = Driver(Scheduler(LIMITS, queue_limit=1))
    d.tick(submit("a-0", 4, 1), submit("b-0", 4, 50), submit("c-0", 4, 9))
    # a has ended, c is about to take its slot: nobody may count on it.
    step = d.tick(submit("d-0", 4, 1))
    assert [type(o) for o in step.outcomes] == [Refused, Admitted]


def test_choices_of_one_request_are_refused_together():
    d = Driver(Scheduler(LIMITS, queue_limit=2))
    d.tick(submit("a-0", 4, 50), submit("b-0", 4, 50))
    step = d.tick(*(submit(f"c-{k}", 4, 9) for k in range(3)), submit("d-0", 4, 9))
    refused = [o.id for o in step.outcomes if isinstance(o, Refused)]
    assert refused == ["c-0", "c-1", "c-2"]
    assert d.scheduler.statistics().queued == 1


def test_what_can_never_fit_is_refused_with_numbers():
    s = Scheduler(LIMITS)
    step = s.tick(Record(0, (submit("a-0", 200, 57), submit("b-0", 150, 43))))
    by_id = {o.id: o for o in step.outcomes}
    assert by_id["a-0"].code == by_id["b-0"].code == "context_length_exceeded"
    # 200 + 57 > 256 positions; 150 + 43 = 193 > 24 blocks of 8.
    for word in ("256", "257", "200", "57"):
        assert word in by_id["a-0"].message
    assert "192" in by_id["b-0"].message
    assert "193" in by_id["b-0"].message
    assert step.plan is None


def test_higher_priority_first_then_arrival():
    d = Driver(Scheduler(LIMITS))
    d.tick(submit("a-0", 4, 3), submit("b-0", 4, 3))
    d.tick(
        submit("low-0", 4, 3, priority=-1),
        submit("mid-0", 4, 3),
        submit("mid2-0", 4, 3),
        submit("top-0", 4, 3, priority=100),
    )
    d.run()
    assert d.admitted == ["a-0", "b-0", "top-0", "mid-0", "mid2-0", "low-0"]


def test_a_small_request_passes_a_large_one_that_does_not_fit_but_not_for_ever():
    d = Driver(Scheduler(LIMITS, queue_limit=200))
    d.tick(submit("live-0", 60, 60))  # 15 of 24 blocks, for a long time
    d.tick(submit("large-0", 70, 10), *(submit(f"s{i}-0", 4, 1) for i in range(60)))
    d.run()
    assert d.admitted.index("large-0") == 1 + 32


def test_priority_does_not_starve_either():
    d = Driver(Scheduler(LIMITS, queue_limit=200))
    d.tick(submit("a-0", 4, 5), submit("b-0", 4, 5))
    d.tick(submit("low-0", 4, 1, priority=-100))
    d.tick(*(submit(f"high{i}-0", 4, 1, priority=100) for i in range(60)))
    d.run()
    assert d.admitted.index("low-0") == 2 + 32


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (Submit("a-0", b"", 1), "prompt of 0 bytes"),
        (Submit("a-0", b"abcde", 1), "prompt of 5 bytes"),
        (Submit("a-0", pack_ids([1]), -1), "max_tokens -1"),
        (Submit("a-0", pack_ids([1]), 1, priority=101), "priority 101"),
        (Submit("live-0", pack_ids([1]), 1), "live already"),
        (Submit("new-0", pack_ids([1]), 1), "live already"),
    ],
)
def test_contract_errors_change_nothing(bad, word):
    d = Driver(Scheduler(LIMITS))
    d.tick(submit("live-0", 4, 9))
    before = d.scheduler.statistics()
    with pytest.raises(SubmitContractError, match=word) as caught:
        d.scheduler.tick(Record(1, (submit("new-0", 4, 4), bad), cancels=("live-0",)))
    assert isinstance(caught.value, ValueError)
    assert d.scheduler.statistics() == before


def test_tick_and_apply_alternate():
    s = Scheduler(LIMITS)
    with pytest.raises(StepOrderError, match="verdict of step 0 came, awaited: none"):
        s.apply(Verdict(0))
    s.tick(Record(0, (submit("a-0", 4, 2),)))
    with pytest.raises(StepOrderError, match="step 0 awaits"):
        s.tick(Record(1))
    with pytest.raises(StepOrderError, match="awaited: step 0"):
        s.apply(Verdict(5, (SlotVerdict(0, (1,)),)))


@pytest.mark.parametrize(
    "slots",
    [
        (),
        (SlotVerdict(1, (1,)),),
        (SlotVerdict(0, ()),),
        (SlotVerdict(0, (1, 2)),),
        (SlotVerdict(0, (1, 2, 3), Finish.LENGTH),),
    ],
)
def test_verdicts_that_do_not_fit_the_plan(slots):
    s = Scheduler(LIMITS)
    s.tick(Record(0, (submit("a-0", 4, 2),)))
    with pytest.raises(VerdictContractError):
        s.apply(Verdict(0, slots))
    assert s.outstanding is not None


def test_a_request_may_end_without_a_token():
    s = Scheduler(LIMITS)
    s.tick(Record(0, (submit("a-0", 4, 2),)))
    ended = s.apply(Verdict(0, (SlotVerdict(0, (), Finish.EOS),)))
    assert ended[-1] == Retired("a-0", Finish.EOS, 0)


def test_operation_lines_and_their_fold():
    lines: list[bytes] = []

    def run(token: int) -> Scheduler:
        lines.clear()
        s = Scheduler(LIMITS, operations_sink=lines.append)
        s.tick(Record(0, (submit("a-0", 4, 9),)))
        s.apply(Verdict(0, (SlotVerdict(0, (token,)),)))
        s.tick(Record(1))
        s.apply(Verdict(1, (SlotVerdict(0, (6, 2), Finish.EOS),)))
        return s

    first = run(5).digest()
    assert b"".join(lines) == b"T a-0 5 1\nT a-0 6 2\nT a-0 2 3\nR a-0 1 3\n"
    assert run(5).digest() == first
    assert run(4).digest() != first


def test_an_unknown_admission_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"engine\.admission"):
        Scheduler(LIMITS, admission="half")
