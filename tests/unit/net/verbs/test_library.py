"""What failures are called, and the network that tests use."""

from __future__ import annotations

import numpy as np
import pytest
from fake_verbs import Fabric, Faults
from verbs_end import Done, End

from dgpp.net.verbs.errors import (
    BusError,
    LocalAccessError,
    PeerNotReadyError,
    PeerUnreachableError,
    QueueBrokenError,
    RemoteAccessError,
)
from dgpp.net.verbs.library import Status, failure


def connected(faults=Faults(), depth=64):  # noqa: B008
    """Two ends of one network."""
    fabric = Fabric(faults)
    ends = [End(fabric.port(name), depth=depth) for name in ("a", "b")]
    for end, other in (ends, ends[::-1]):
        end.connect(other.told())
    return fabric, *ends


def completed(end, polls=20_000):
    """What comes while `end` polls."""
    came = []
    for _ in range(polls):
        came += end.poll()
    return came


@pytest.mark.parametrize(
    "faults", [Faults(), Faults(lost=3, doubled=3, early=3, delayed=2), Faults(lost=1)]
)
def test_lost_and_doubled_pieces_are_mended(faults):
    """Even where all is lost as often as an adapter tries again."""
    _fabric, a, b = connected(faults)
    a.mine[:] = np.random.default_rng(3).integers(0, 256, a.half)
    b.receive(7)
    assert a.write(50_000, signaled=False) == 0
    assert a.write(60_000, number=2, told=True) == 0
    assert completed(a) == [Done(2)]
    assert b.poll() == [Done(7, received=True)]
    assert np.array_equal(a.mine[:60_000], b.theirs[:60_000])
    assert not b.theirs[60_000:].any()


def test_a_dead_peer_is_told_and_what_waits_behind_is_thrown_away():
    fabric, a, _b = connected()
    fabric.kill("b")
    a.write(64)
    a.write(64, number=2)
    assert completed(a, 20) == [Done(1, Status.UNREACHABLE), Done(2, Status.FLUSHED)]
    a.write(64, number=3)
    assert completed(a, 20) == [Done(3, Status.FLUSHED)]


def test_wrong_keys_and_a_missing_receive_are_told():
    for status, options in (
        (Status.REMOTE_ACCESS, {"rkey": 99}),
        (Status.LOCAL_ACCESS, {"lkey": 99}),
        (Status.NOT_READY, {"told": True}),
    ):
        _fabric, a, b = connected()
        a.write(64, **options)
        assert completed(a, 20) == [Done(1, status)]
        assert status is Status.NOT_READY or not b.theirs.any()


def test_a_full_queue_takes_no_more():
    _fabric, a, _b = connected(depth=1)
    assert a.write(64) == 0
    assert a.write(64) == 12


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (12, PeerUnreachableError, "no answer after all retries"),
        (13, PeerNotReadyError, "its process hangs"),
        (10, RemoteAccessError, "restart all ranks together"),
        (4, LocalAccessError, "please report it"),
        (5, QueueBrokenError, "the first failure of this peer says why"),
        (1, BusError, "see the kernel's log"),
        (21, BusError, "see the kernel's log"),
    ],
)
def test_failures_have_names(status, kind, words):
    error = failure(status, 0x81, "rank 3, lane 1")
    assert type(error) is kind
    assert str(error).startswith("roce bus: rank 3, lane 1: ")
    assert words in str(error)
    assert str(error).endswith(f"(status {status}, vendor 0x81)")
