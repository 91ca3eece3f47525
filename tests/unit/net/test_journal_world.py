"""The two sides of a running journal: order, digests, flow, silence and every end."""

from __future__ import annotations

import pytest

from dgpp.net.journal_errors import JournalContractError, RankFailedError, ReleasedError
from dgpp.net.journal_follower import APPLIED_PARTS, Follower
from dgpp.net.journal_leader import AHEAD_BYTES, AHEAD_TICKS, Leader, Phase
from dgpp.net.journal_messages import (
    Applied,
    Beat,
    Ended,
    Leave,
    Point,
    Ready,
    Stop,
    Stopped,
    Tick,
    Warm,
)
from dgpp.net.journal_silence import BEAT_S, SILENT_S, START_SILENT_S
from dgpp.sched.request import Record

APPLIED_EVERY = AHEAD_TICKS // APPLIED_PARTS
FACTS = {"settings": "aa"}


def serving_leader(world=3) -> Leader:
    leader = Leader(world)
    for rank in range(1, world):
        assert not leader.all_ready
        leader.receive(rank, Ready())
    leader.warm()
    return leader


def serving_follower() -> Follower:
    follower = Follower(1, FACTS)
    follower.receive(Warm(FACTS))
    return follower


def looks(limit_s: float) -> int:
    """Looks until a silence of more than `limit_s` is named."""
    return int(limit_s / BEAT_S) + 1


def test_rank_0_waits_for_the_slowest_rank():
    leader = serving_leader()
    for number in range(AHEAD_TICKS):
        assert leader.may_tick
        leader.sent(Tick(number, number, 0), 100)
    assert not leader.may_tick
    leader.receive(1, Applied(AHEAD_TICKS))
    assert not leader.may_tick
    leader.receive(2, Applied(1))
    assert leader.may_tick


def test_large_records_hold_rank_0_back_earlier():
    leader = serving_leader(2)
    leader.sent(Tick(0, 0, 0), AHEAD_BYTES)
    assert not leader.may_tick
    leader.receive(1, Applied(1))
    assert leader.may_tick
    leader.sent(Tick(1, 0, 0), 10 * AHEAD_BYTES)
    leader.receive(1, Applied(2))
    assert leader.may_tick


@pytest.mark.parametrize("ticks", [0, 2])
def test_an_acknowledgement_that_cannot_be_is_named(ticks):
    leader = serving_leader(2)
    leader.sent(Tick(0, 0, 0), 1)
    leader.receive(1, Applied(1))
    with pytest.raises(RankFailedError, match=f"rank 1: journal: applied {ticks} ticks after 1"):
        leader.receive(1, Applied(ticks))


@pytest.mark.parametrize("message", [Ready(), Stopped(0, 0, 0, 0)])
def test_what_a_rank_says_out_of_turn_is_named(message):
    name = type(message).__name__
    with pytest.raises(RankFailedError, match=f"rank 2: journal: said {name} while serving"):
        serving_leader().receive(2, message)


def test_a_failed_rank_is_named_with_its_cause_and_age():
    with pytest.raises(RankFailedError, match="rank 2: engine of rank 2 stopped") as failed:
        serving_leader().receive(2, Ended(2, "engine of rank 2 stopped responding", 2.1))
    assert failed.value.age_s == 2.1
    assert failed.value.exit_status == 2


def test_a_silent_rank_is_named_within_its_limit():
    leader = serving_leader()
    for _ in range(looks(SILENT_S) - 1):
        leader.look()
        leader.receive(1, Beat())
    with pytest.raises(RankFailedError, match=r"rank 2: silent for 2\.25 s") as failed:
        leader.look()
    assert failed.value.age_s == SILENT_S + BEAT_S


def test_a_starting_rank_may_be_silent_for_longer():
    leader = Leader(2)
    for _ in range(looks(START_SILENT_S) - 1):
        leader.look()
    with pytest.raises(RankFailedError, match=r"rank 1: silent for 60\.25 s"):
        leader.look()


def test_a_lost_connection_ends_the_world_unless_the_rank_had_stopped():
    leader = serving_leader()
    with pytest.raises(RankFailedError, match="rank 1: its journal connection ended: reset"):
        leader.closed(1, ": reset")
    leader.stop(Stop(0, 0, 5, 0, idle=True))
    leader.receive(1, Stopped(0, 0, 5, 0))
    leader.closed(1, "")
    assert leader.phase is Phase.STOPPING
    with pytest.raises(RankFailedError, match="rank 2: its journal"):
        leader.closed(2, "")
    leader.receive(2, Stopped(0, 0, 5, 0))
    assert leader.phase is Phase.OVER


def test_operation_streams_are_compared_at_the_end():
    leader = serving_leader()
    leader.stop(Stop(0, 0, 5, 0, idle=True))
    leader.receive(1, Stopped(0, 0, 5, 0))
    with pytest.raises(RankFailedError) as failed:
        leader.receive(2, Stopped(0, 0, 6, 0))
    assert str(failed.value) == (
        "rank 2: its operations differ: "
        "0 ticks, 0 steps, operations 0000000000000006, prefixes 0000000000000000; on rank 0 "
        "0 ticks, 0 steps, operations 0000000000000005, prefixes 0000000000000000"
    )


def test_operation_streams_are_not_compared_in_mid_step():
    leader = serving_leader(2)
    leader.stop(Stop(0, 0, 5, 0, idle=False))
    leader.receive(1, Stopped(0, 1, 6, 0))
    assert leader.phase is Phase.OVER


def test_a_rank_may_ask_for_an_orderly_end():
    leader = serving_leader()
    leader.receive(2, Leave("signal 15"))
    leader.receive(1, Leave("signal 2"))
    assert leader.leave == "rank 2: signal 15"


def test_records_come_in_order():
    follower = serving_follower()
    assert not follower.due
    follower.receive(Tick(0, 0, 10))
    follower.receive(Tick(1, 1, 11))
    assert follower.next(Point(0, 10, 0)) == Record(0)
    assert follower.due
    assert follower.next(Point(1, 11, 0)) == Record(1)
    assert not follower.due


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (Point(1, 9, 4), "operations 9, rank 0 8"),
        (Point(1, 8, 5), "prefixes 5, rank 0 4"),
        (Point(2, 8, 4), "steps 2, rank 0 1"),
    ],
)
def test_a_rank_that_disagrees_names_the_tick_and_what_differs(point, said):
    follower = serving_follower()
    follower.receive(Tick(0, 1, 8, 4))
    with pytest.raises(JournalContractError, match=f"tick 0: rank 1 disagrees .*: {said}") as bad:
        follower.next(point)
    assert bad.value.exit_status == 1


def test_a_record_that_makes_no_sense_is_named():
    follower = serving_follower()
    follower.receive(Tick(0, 0, 0, prompts=(b"",), prompt_of=(0,)))
    with pytest.raises(JournalContractError, match="tick 0 makes no sense: 0 submits name 1"):
        follower.next(Point(0, 0, 0))


def test_a_tick_missing_or_twice_is_named():
    follower = serving_follower()
    follower.receive(Tick(0, 0, 0))
    for number in (0, 2):
        with pytest.raises(JournalContractError, match=f"rank 0 said tick {number}, 1 ticks"):
            follower.receive(Tick(number, 0, 0))
    with pytest.raises(JournalContractError, match="rank 0 said stop after 2, 1 ticks"):
        follower.receive(Stop(2, 0, 0, 0, idle=True))


def test_acknowledgements_come_now_and_then():
    follower = serving_follower()
    told = []
    for number in range(2 * APPLIED_EVERY):
        follower.receive(Tick(number, 0, 0))
        assert follower.next(Point(0, 0, 0)) is not None
        told.append(follower.acknowledgement())
    assert [t for t in told if t] == [Applied(APPLIED_EVERY), Applied(2 * APPLIED_EVERY)]


def test_rank_0_may_not_lead_without_bound():
    follower = serving_follower()
    for number in range(AHEAD_TICKS):
        follower.receive(Tick(number, 0, 0))
    with pytest.raises(JournalContractError, match=f"leads by more than {AHEAD_TICKS} ticks"):
        follower.receive(Tick(AHEAD_TICKS, 0, 0))


def test_the_end_comes_after_all_records():
    follower = serving_follower()
    follower.receive(Tick(0, 0, 3))
    follower.receive(Stop(1, 1, 4, 0, idle=True))
    assert follower.finish(Point(1, 4, 0)) is None
    assert follower.next(Point(0, 3, 0)) == Record(0)
    assert follower.finish(Point(0, 3, 0)) is None
    assert follower.finish(Point(1, 4, 0)) == Stopped(1, 1, 4, 0)
    assert follower.stopped
    follower.closed("")


def test_a_released_rank_exits_3_and_names_the_cause():
    follower = serving_follower()
    with pytest.raises(ReleasedError, match="rank 2 ended the world: engine of rank 2") as over:
        follower.receive(Ended(2, "engine of rank 2 was killed by signal 9"))
    assert over.value.exit_status == 3
    with pytest.raises(ReleasedError, match="rank 0 is gone: its journal connection ended"):
        follower.closed("")


def test_a_silent_rank_0_releases_the_others():
    follower = serving_follower()
    for _ in range(looks(SILENT_S) - 1):
        follower.look()
    with pytest.raises(ReleasedError, match=r"rank 0 is gone: silent for 2\.25 s"):
        follower.look()


@pytest.mark.parametrize("message", [Tick(0, 0, 0), Stop(0, 0, 0, 0, idle=True)])
def test_nothing_but_warm_comes_first(message):
    follower = Follower(1, FACTS)
    if isinstance(message, Tick):
        with pytest.raises(JournalContractError, match="said Tick out of turn"):
            follower.receive(message)
    else:
        follower.receive(message)
        assert follower.finish(Point(0, 0, 0)) == Stopped(0, 0, 0, 0)


def test_other_facts_at_the_start_are_named():
    with pytest.raises(JournalContractError, match="settings is aa, on rank 0 bb"):
        Follower(1, FACTS).receive(Warm({"settings": "bb"}))
    follower = serving_follower()
    with pytest.raises(JournalContractError, match="said Warm out of turn"):
        follower.receive(Warm(FACTS))
