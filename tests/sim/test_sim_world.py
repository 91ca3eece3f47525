"""Worlds of two to four ranks under a fault each: one end, named, in time, and nobody lied to."""

from __future__ import annotations

import pytest
from sim_audit import AuditError, audit
from sim_case import FAULTS, Case
from sim_world import Run

SEEDS = 2000
LONG_SEEDS = 20_000
EACH = 50
FOUND = (12893, 20593, 54202, 68595, 88833, 201063)
"""Findings among 100,000 seeds and more: a timer that was cancelled while its rank stood still, a
stop while rank 0 was still starting, a drain that one slow link outlasts, a signal before there was
anybody to get it."""


def play(seed, fault=None):
    try:
        return Run(Case(seed, fault)).play(audit)
    except Exception as error:
        again = f"--seed {seed} --count 1" + (f" --fault '{fault}'" if fault else "")
        raise AssertionError(f"{error!r}; replay: python -m tests.sim {again} --tell") from error


@pytest.mark.parametrize("first", range(0, SEEDS, EACH))
def test_random_worlds_keep_their_promises(first):
    for seed in range(first, first + EACH):
        play(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_worlds_that_once_broke_a_promise_keep_it(seed):
    play(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(SEEDS, LONG_SEEDS, 1000))
def test_many_random_worlds_keep_their_promises(first):
    for seed in range(first, first + 1000):
        play(seed)


def test_a_seed_plays_the_same_again():
    seen = []
    for _ in range(2):
        run = play(3, "crash")
        seen.append((run.statuses, run.ended_s, run.ledger.tokens, run.ledger.operations))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", sorted(set(FAULTS) - {"none"}))
def test_every_fault_strikes_worlds_that_serve(kind):
    struck = (run for run in (play(seed, kind) for seed in range(8)) if run.struck_serving)
    breaks = kind in ("crash", "partition", "cut", "engine", "long pause")
    assert any(run.statuses[0] != 0 or not breaks for run in struck)


@pytest.mark.parametrize(
    ("kind", "came"),
    [
        ("none", ("Restore", True)),
        ("flip", ("Restore", False)),
        ("full", ("Spill", False)),
        ("short write", ("Spill", False)),
        ("short read", ("Restore", False)),
        ("unreadable", ("Restore", False)),
    ],
)
def test_disks_meet_what_is_meant_for_them(kind, came):
    """In some world of the first hundred, in its first life or its second."""
    runs = (play(seed, kind) for seed in range(100))
    lives = (life for run in runs for life in (run, run.later) if life is not None)
    assert any(life.ledger.cold[came] for life in lives)


def spoil_tokens(run):
    next(iter(run.ledger.tokens.values()))[0] += 1


def spoil_ends(run):
    next(ends for ends in run.ledger.ends.values() if ends).append("eos")


def spoil_operations(run):
    run.ledger.operations[1][5:6] = b"?"


def spoil_statuses(run):
    run.statuses[1] = 3


def spoil_memory(run):
    run.ledger.lies.append("step 3 found other rows than it wrote")


def spoil_blocks(run):
    run.worlds[1].actors["scheduler"]._scheduler._memory.pool.reserve(1)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_tokens, "other tokens than without a fault"),
        (spoil_ends, "ended"),
        (spoil_operations, "did something else"),
        (spoil_statuses, "ended {"),
        (spoil_memory, "found other rows"),
        (spoil_blocks, None),
    ],
)
def test_the_auditor_sees_what_it_is_there_to_see(spoil, said):
    def look(run):
        audit(run)
        spoil(run)
        with pytest.raises(AssertionError, match=said) as seen:
            audit(run)
        assert spoil is spoil_blocks or isinstance(seen.value, AuditError)

    Run(Case(2, "none")).play(look)
