"""Ranks that die, stop, never come or disagree: named within the limit, on every other rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from net_worlds import SLOT, world_of

from dgpp.net.errors import (
    CollectiveError,
    CollectiveMismatchError,
    PeerAbsentError,
    PeerLateError,
    PeerLeftError,
)
from dgpp.net.shm import ShmCollective
from dgpp.net.slab import create_slab
from dgpp.net.watch import LOOK_S, Limits, Patience

TOY = Path(__file__).with_name("toy_rank.py")
ROOT = Path(__file__).parents[3]


class Looks:
    """Counts looks as ranks do, so that a machine under load, on which all looks take longer, has
    as many of them."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.count += 1


class Processes:
    """A world of toy ranks; after `wait` each is past its first sum."""

    def __init__(self, world: int) -> None:
        self.fd = create_slab(world)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(TOY), str(self.fd), str(rank), str(world)],
                pass_fds=[self.fd],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            for rank in range(world)
        ]

    def wait(self) -> None:
        for rank in self.ranks:
            assert self.line(rank) == "running"

    @staticmethod
    def line(rank: subprocess.Popen) -> str:
        assert rank.stdout is not None
        return rank.stdout.readline().strip()

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()
        os.close(self.fd)


def test_a_dead_or_stopped_rank_is_named_by_all_others_in_time() -> None:
    with ExitStack() as scope:
        worlds = {}
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            worlds[fault] = Processes(3)
            scope.callback(worlds[fault].close)
        for world in worlds.values():
            world.wait()
        with Looks() as looks:
            for fault, world in worlds.items():
                world.ranks[1].send_signal(fault)
            for world in worlds.values():
                for rank in (0, 2):
                    said = world.line(world.ranks[rank])
                    assert "rank 1" in said
                    assert said.startswith(("PeerSilentError", "PeerLeftError"))
        assert looks.count * LOOK_S < 3.0
        for world in worlds.values():
            assert [world.ranks[rank].wait(60) for rank in (0, 2)] == [2, 2]


def test_a_rank_that_never_comes_is_named() -> None:
    fd = create_slab(3, SLOT)
    rank = ShmCollective(fd, 2, 3, slot_bytes=SLOT)
    with pytest.raises(PeerAbsentError, match=r"rank 0, rank 1 of 3 did not join within 0.05 s"):
        rank.join(0.05)
    rank.close()
    os.close(fd)


def test_a_place_is_taken_once() -> None:
    with (
        world_of(1) as world,
        pytest.raises(CollectiveError, match=f"process {os.getpid()} is rank 0 already"),
    ):
        ShmCollective(world.fd, 0, 1, slot_bytes=SLOT).join()


def test_a_slab_of_another_size_is_refused() -> None:
    fd = create_slab(2, SLOT)
    try:
        with pytest.raises(CollectiveMismatchError, match=f"3 ranks with slots of {SLOT} need"):
            ShmCollective(fd, 0, 3, slot_bytes=SLOT)
        with pytest.raises(CollectiveError, match="rank 2 of 2 does not exist"):
            ShmCollective(fd, 2, 2, slot_bytes=SLOT)
    finally:
        os.close(fd)


def test_a_world_of_another_shape_in_a_slab_of_the_same_size_is_refused() -> None:
    fd = create_slab(2, 4 * SLOT)
    ranks = [
        ShmCollective(fd, 0, 2, slot_bytes=4 * SLOT),
        ShmCollective(fd, 1, 4, slot_bytes=2 * SLOT),
    ]
    try:
        ranks[1].slab.enter()
        with pytest.raises(
            CollectiveMismatchError,
            match=f"rank 1 has world 4 instead of 2, slot bytes {2 * SLOT} instead of {4 * SLOT}",
        ):
            ranks[0].join(1)
    finally:
        for rank in ranks:
            rank.close()
        os.close(fd)


def test_a_rank_that_lives_and_does_not_come_is_named_as_late() -> None:
    with world_of(2, serving=Limits(silent_s=60.0, late_s=0.3)) as world:
        with pytest.raises(PeerLateError, match=r"rank 1 .* did not come to a barrier \(number 2"):
            world.ranks[0].barrier()
        world.ranks[1].barrier()
        with pytest.raises(PeerLeftError, match="rank 0 found rank 1 broken"):
            world.ranks[1].barrier()


def test_a_rank_that_leaves_is_named() -> None:
    with world_of(2) as world:
        world.ranks[1].close()
        with pytest.raises(
            PeerLeftError, match=r"rank 1 \(process \d+\) has left before a barrier"
        ):
            world.ranks[0].barrier()


class Scripted:
    """What is seen of one rank, look after look."""

    def __init__(self, beats: list[int]) -> None:
        self._beats = iter(beats)

    def beats(self, rank: int) -> int:
        return next(self._beats)

    def pid(self, rank: int) -> int:
        return 7

    def left(self, rank: int) -> bool:
        return False


def looks_until_named(beats: list[int], limits: Limits) -> int:
    patience = Patience(Scripted(beats), limits, "a barrier")
    for look in range(1, len(beats) + 1):
        try:
            patience.look(1)
        except CollectiveError:
            return look
    return 0


def test_silence_is_counted_in_looks_since_the_last_beat() -> None:
    limits = Limits(silent_s=3 * LOOK_S, late_s=1000.0)
    assert looks_until_named([1, 1, 1, 1, 1], limits) == 4
    assert looks_until_named([1, 1, 1, 2, 2, 2, 3, 3, 3, 4], limits) == 0
    assert looks_until_named([1, 1, 1, 2, 2, 2, 2, 2], limits) == 7


def test_a_wait_for_one_rank_says_nothing_of_the_next() -> None:
    patience = Patience(Scripted([5] * 6), Limits(silent_s=3 * LOOK_S, late_s=9.0), "a barrier")
    for rank in (1, 1, 2, 2, 1, 1):
        patience.look(rank)
