"""The host side of collectives on devices: who watches, who lets kernels go, what is raised."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
from net_worlds import world_of

from dgpp.errors import ConfigError
from dgpp.net.choose import open_collective
from dgpp.net.collective import Wire
from dgpp.net.device import DeviceCollective
from dgpp.net.errors import CollectiveMismatchError, PeerLateError, PeerLeftError, PeerSilentError
from dgpp.net.paths import Route, path_of
from dgpp.net.slab import create_slab
from dgpp.net.tags import Kind, tag
from dgpp.net.watch import LOOK_S, Limits
from kernels_numba.gpu.board import Tally
from kernels_numba.gpu.errors import CudaError

SERVING = Limits(silent_s=3 * LOOK_S, late_s=7.0)


class FakeRanks:
    """A device whose kernels wait until they are let go."""

    def __init__(self, *, tells: bool = True) -> None:
        self.partial = SimpleNamespace(width=64)
        self.tells = tells
        self.limits: list[float] = []
        self.aborted = False
        self.gave_up = -1
        self.did_instead = (0, 0)
        self.sums: list[tuple[int, bool]] = []

    def limit(self, seconds: float) -> None:
        self.limits.append(seconds)

    def abort(self) -> None:
        self.aborted = True

    def failed(self) -> int:
        return self.gave_up

    def other(self) -> tuple[int, int]:
        return self.did_instead

    def all_reduce(self, count: int, out, *, add: bool) -> None:
        self.sums.append((count, add))

    def tally(self) -> Tally:
        return Tally(sums=7, gathers=3, bytes=1000, waits=5, waited_ns=2_500_000_000)


@pytest.fixture
def pair():
    """Two ranks over a real slab, their devices faked: (collectives, devices)."""
    with world_of(2) as world:
        devices = [FakeRanks(), FakeRanks()]
        ends = [
            DeviceCollective("p2p", rank, lambda host, *_: devices[host.rank], serving=SERVING)
            for rank in world.ranks
        ]
        for job in [world.pool.submit(end.partial, None, 64) for end in ends]:
            job.result(10)
        for end in ends:
            end.serve()
        yield ends, devices
        for end in ends:
            end.close()


def until(condition, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_limits_follow_the_phase_and_what_the_device_counts_is_told(pair) -> None:
    ends, devices = pair
    assert devices[0].limits[-1] == SERVING.late_s
    for count in (3, 5):
        ends[0].all_reduce(count, devices[0].partial, None, add=count == 3)
    assert devices[0].sums == [(3, True), (5, False)]
    host, told = ends[0]._host.statistics(), ends[0].statistics()
    # Replayed sums are the device's alone to count.
    assert (told.path, told.all_reduces, told.bytes) == ("p2p", 7, host.bytes + 1000)
    assert (told.all_gathers, told.barriers) == (host.all_gathers + 3, host.barriers)
    assert told.waits == host.waits + 5
    assert told.waited_s == pytest.approx(host.waited_s + 2.5)
    time.sleep(4 * LOOK_S)
    assert not any(device.aborted for device in devices)
    for end in ends:
        end.check()


def test_a_stopped_peer_lets_waiting_kernels_go_and_is_named(pair) -> None:
    ends, devices = pair
    ends[1]._host.beater.stop()
    assert until(lambda: devices[0].aborted)
    with pytest.raises(PeerSilentError, match=r"rank 1 .* is dead or stopped: no heart-beat"):
        ends[0].check()


def test_a_kernel_that_gave_up_names_the_late_rank(pair) -> None:
    ends, devices = pair
    devices[0].gave_up = 1
    with pytest.raises(PeerLateError, match=r"rank 1 lives and did not come .* within 7 s"):
        ends[0].check()


def test_a_rank_that_did_something_else_is_told(pair) -> None:
    ends, devices = pair
    devices[0].gave_up, devices[0].did_instead = 1, (17, tag(Kind.ALL_GATHER, Wire.F32, 96))
    said = "rank 1 is at an all-gather of 96 bytes, its number 17 on the device, and rank 0 at anot"
    with pytest.raises(CollectiveMismatchError, match=said):
        ends[0].check()


def test_what_breaks_the_hosts_ends_lets_kernels_go(pair, monkeypatch) -> None:
    ends, devices = pair
    broke = PeerLeftError("the poller has ended")
    monkeypatch.setattr(ends[0]._host, "trouble", lambda: broke)
    assert until(lambda: devices[0].aborted)
    with pytest.raises(PeerLeftError, match="the poller has ended"):
        ends[0].check()


@pytest.mark.parametrize(
    "call", [lambda end: end.all_gather(np.zeros(1)), lambda end: end.barrier()]
)
def test_nothing_of_a_device_that_gave_up_is_exchanged(pair, call) -> None:
    ends, devices = pair
    devices[0].gave_up = 1
    with pytest.raises(PeerLateError, match="rank 1 lives and did not come to a sum on the dev"):
        call(ends[0])


def test_a_peer_that_leaves_matters_only_to_kernels_that_wait(pair) -> None:
    ends, devices = pair
    ends[1].close()
    assert until(lambda: devices[0].aborted)
    ends[0].check()
    devices[0].gave_up = 1
    with pytest.raises(PeerLeftError, match=r"rank 1 .* has left"):
        ends[0].check()


def test_a_device_that_cannot_be_reached_is_a_named_setting(pair) -> None:
    ends, _ = pair

    def opener(host, backend, width):
        raise CudaError("the memory of rank 1 cannot be mapped")

    with pytest.raises(ConfigError, match=r"engine\.collective p2p: the memory of rank 1 cannot"):
        DeviceCollective("p2p", ends[0]._host, opener).partial(None, 64)


@pytest.mark.parametrize(
    ("wanted", "backend", "apart", "message"),
    [
        ("nccl", "cpu", False, "engine.collective: nccl is of GPUs, the backend is cpu"),
        ("shm", "cuda", False, "engine.collective: shm sums in the host's memory"),
        ("shm", "cpu", True, r"engine.collective: shm is the memory that one `dgpp run` .* verbs"),
    ],
)
def test_what_cannot_be_served_is_refused(wanted, backend, apart, message) -> None:
    with pytest.raises(ConfigError, match=message):
        path_of(wanted, backend, apart=apart)


@pytest.mark.parametrize(
    ("wanted", "backend", "apart", "route"),
    [
        ("auto", "cpu", False, Route.SHM),
        ("auto", "cpu", True, Route.VERBS),
        ("shm", "cpu", False, Route.SHM),
        ("verbs", "cpu", False, Route.VERBS),
        ("verbs", "cpu", True, Route.VERBS),
        ("auto", "cuda", False, Route.DEVICES),
        ("nccl", "cuda", False, Route.DEVICES),
        ("auto", "cuda", True, Route.VERBS),
        ("nccl", "cuda", True, Route.VERBS),
        ("verbs", "cuda", False, Route.VERBS),
    ],
)
def test_where_ranks_are_decides_how_they_sum(wanted, backend, apart, route) -> None:
    assert path_of(wanted, backend, apart=apart) is route


def test_a_world_of_one_opens_and_says_how_fast_it_is(caplog) -> None:
    for wanted in ("auto", "shm"):
        caplog.clear()
        fd = create_slab(1)
        with caplog.at_level("INFO", logger="dgpp.net"):
            collective = open_collective(wanted, "cpu", 0, fd, 0, 1, 5.0)
        os.close(fd)
        assert collective.name == "shm"
        assert "collective shm: rank 0 of 1, the host's sum of 20 KiB takes" in caplog.text
        np.testing.assert_array_equal(collective.all_gather(np.arange(3)), [[0, 1, 2]])
        collective.close()
