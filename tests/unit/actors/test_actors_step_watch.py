"""A step that does not end is named; steps that do, and idle time, are not."""

from __future__ import annotations

from actors.step_watch import StepWatch


def look(watch: StepWatch, seconds: int) -> list[str | None]:
    return [watch.look(1.0) for _ in range(seconds)]


def test_a_step_that_does_not_end_is_named():
    watch = StepWatch("scheduler of rank 1", limit_s=5.0)
    watch.planned, watch.decided = 4, 3
    # The first look finds a decision that it has not seen.
    assert look(watch, 6) == [None] * 6
    assert look(watch, 1) == ["scheduler of rank 1: step 3 did not end within 5 s"]


def test_each_decision_counts_anew_and_idle_time_does_not():
    watch = StepWatch("scheduler of rank 0", limit_s=5.0)
    assert look(watch, 100) == [None] * 100
    for step in range(20):
        watch.planned = step + 2
        watch.decided = step
        assert look(watch, 5) == [None] * 5
    watch.decided = watch.planned
    assert look(watch, 100) == [None] * 100
