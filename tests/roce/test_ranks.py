"""Ranks in processes of their own over real devices: every size, loss, and how each fault ends."""

from __future__ import annotations

import signal
import subprocess

import pytest
from ends import either
from forked import Fell, ranks
from whole_bus import GEOMETRY, WIDTH

from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.packages import PACKAGES

SIZES = {
    2: [(1, 1), (1, 5), (1, WIDTH), (2, WIDTH), (37, 1000), (128, WIDTH), (1024, WIDTH)],
    4: [(1, 5), (2, WIDTH), (37, 1000)],
}
"""By world, rows and values of a row: from 4 bytes to 8 MiB."""
NAMED_S = 3.0


@pytest.fixture
def loss():
    """A lossy wire: the devices of scripts/roce-vm throw two of a hundred packets away."""
    pairs = ("pair0", "pair1")
    rule = ["root", "netem", "loss", "2%"]
    for pair in pairs:
        command = ["tc", "qdisc", "add", "dev", pair, *rule]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("needs netem on the devices of scripts/roce-vm")
    yield
    for pair in pairs:
        subprocess.run(["tc", "qdisc", "del", "dev", pair, "root"], check=True)


@either
@pytest.mark.parametrize("world", [2, 4])
def test_every_size_is_summed_in_rank_order(devices, gid_index, world, package):
    with ranks(world, devices, gid_index, package) as bus:
        bus.joined().all("serve")
        for rows, width in SIZES[world]:
            assert all(bus.all("sums", rows, width)), (rows, width)
        # The ring of latency slots goes round more than twice.
        assert all(bus.all("sums", 1, WIDTH, 2 * GEOMETRY.latency_slots + 3))
        assert len(set(bus.all("barrier"))) == 1
        assert all(bus.all("close"))


@pytest.mark.long
def test_ranks_need_not_have_the_same_package(devices, gid_index, package):
    other = next(name for name in PACKAGES if name != package)
    with ranks(2, devices, gid_index, package, package={1: other}) as bus:
        bus.joined()
        for rows in (1, 40):
            assert all(bus.all("sums", rows, WIDTH)), rows
        assert all(bus.all("close"))


@either
def test_two_lanes_carry_one_sum(devices, gid_index, package):
    lanes = {0: devices, 1: devices[::-1]}
    with ranks(2, devices, gid_index, package, devices=lanes) as bus:
        bus.joined()
        for rows in (1, 40):
            assert all(bus.all("sums", rows, WIDTH)), rows
        assert all(bus.all("close"))


@either
def test_what_the_wire_loses_is_sent_again(devices, gid_index, loss, package):
    with ranks(2, devices, gid_index, package) as bus:
        bus.joined()
        for rows, times in ((1, 8), (64, 1)):
            assert all(bus.all("sums", rows, WIDTH, times)), rows


@either
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_freezes_is_named_by_the_others(devices, gid_index, fault, package):
    with ranks(2, devices, gid_index, package) as bus:
        bus.joined().all("serve")
        bus.all("sums", 1, WIDTH)
        bus.signal(1, fault)
        bus.ask(0, "sums", 1, WIDTH)
        with pytest.raises(Fell, match="rank 1") as fell:
            bus.answer(0)
        assert fell.value.status == 2
        assert fell.value.seconds < NAMED_S, fell.value


def test_a_wrong_token_is_turned_away_on_both_sides(devices, gid_index):
    told = {"token": {1: b"w" * 32}, "timeout_s": {0: 3.0}}
    with ranks(2, devices, gid_index, **told) as bus:
        with pytest.raises(Fell, match="wrong cluster token") as fell:
            bus.answer(1)
        assert fell.value.status == 1
        with pytest.raises(Fell, match=r"rank 1 did not come within 3 s .* wrong cluster token"):
            bus.answer(0)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("geometry", Geometry(8, 4096, 8, 65536), "rank 1 has 8 latency slots of 4096 bytes"),
        ("devices", None, r"rank 1 has 2 lanes, rank 0 1 \(DGPP_ROCE_DEVICES"),
    ],
)
def test_what_does_not_fit_is_named_on_both_sides(devices, gid_index, name, value, said):
    told = {name: {1: devices if value is None else value}}
    with ranks(2, devices, gid_index, **told) as bus:
        for rank in (0, 1):
            with pytest.raises(Fell, match=said) as fell:
                bus.answer(rank)
            assert fell.value.status == 1


def test_ranks_at_different_sums_are_told_so(devices, gid_index):
    with ranks(2, devices, gid_index) as bus:
        bus.joined().all("serve")
        bus.ask(0, "sums", 1, WIDTH)
        bus.ask(1, "sums", 2, WIDTH)
        for rank in (0, 1):
            other = f"number 2 is an all-reduce of {8192 * (2 - rank)} bytes on rank {1 - rank}"
            with pytest.raises(Fell, match=f"{other} and an all-reduce of "):
                bus.answer(rank)
