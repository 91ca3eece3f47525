"""Remains of ranks are cleared away, and no rank is forgotten that starts meanwhile."""

from __future__ import annotations

import pytest

from dgpp.cluster import launch


class Child:
    """What a started process is to `reap`: `during` happens while it is looked at."""

    def __init__(self, code: int | None, during=lambda: None) -> None:
        self.code, self.during = code, during

    def poll(self) -> int | None:
        self.during()
        return self.code


@pytest.fixture
def children(monkeypatch):
    held: list[Child] = []
    monkeypatch.setattr(launch, "_children", held)
    return held


def test_what_has_ended_is_forgotten(children) -> None:
    running = Child(None)
    children += [Child(0), running, Child(-9)]
    launch.reap()
    assert children == [running]


def test_a_rank_that_starts_meanwhile_is_remembered(children) -> None:
    late = Child(None)
    children += [Child(0, lambda: children.append(late)), Child(None)]
    launch.reap()
    assert late in children


def test_two_may_look_at_once(children) -> None:
    children.append(Child(0, lambda: children.clear()))
    launch.reap()
    assert children == []
