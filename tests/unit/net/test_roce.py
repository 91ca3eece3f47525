"""RDMA devices as the kernel describes them: no link-local address is ever chosen."""

from __future__ import annotations

from functools import partial

import pytest
from rdma_files import DOWN, LINK_LOCAL, TABLE, UP, make_devices

from dgpp.errors import ConfigError
from dgpp.net.roce import chosen, devices, site_lines


@pytest.fixture
def machine(tmp_path):
    return partial(make_devices, tmp_path)


def test_the_first_address_that_is_not_link_local_serves(machine):
    root = machine(rocep1s0f0=(UP, TABLE))
    (device,) = devices(root)
    assert device.gid().index == 3
    assert device.gid().host == "10.9.0.1"
    assert [gid.index for gid in device.gids] == [0, 1, 2, 3, 5]
    assert device.gid(pinned=5).host == "fd00::5"
    assert device.gid(pinned=1).address == LINK_LOCAL
    with pytest.raises(ConfigError, match="rocep1s0f0 has no GID 4; it has 0, 1, 2, 3, 5"):
        device.gid(pinned=4)


def test_link_local_addresses_alone_are_refused(machine):
    (device,) = devices(machine(a=(UP, TABLE[:2])))
    with pytest.raises(ConfigError, match="no RoCE v2 address but link-local ones"):
        device.gid()


def test_lanes_are_those_named_or_those_that_work(machine):
    root = machine(a=(DOWN, TABLE), b=(UP, TABLE), c=(UP, TABLE[:1]), d=(UP, TABLE), e=(UP, TABLE))
    assert [lane.name for lane in chosen((), (), root)] == ["b", "d"]
    assert [lane.name for lane in chosen(("e", "b"), (), root)] == ["e", "b"]
    assert site_lines(chosen((), (), root)) == [
        'DGPP_ROCE_DEVICES="b d"',
        'DGPP_ROCE_GID_INDICES="3 3"',
    ]
    for names, said in (
        (("x",), "no x here; there are a, b, c, d, e"),
        (("a",), "a is 1: DOWN: check its cable"),
        (("c",), "c: no RoCE v2 address"),
    ):
        with pytest.raises(ConfigError, match=said):
            chosen(names, (), root)


def test_a_machine_without_devices_is_told_so(machine, tmp_path):
    with pytest.raises(ConfigError, match="no RDMA device here"):
        chosen((), (), tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"no RDMA device is active .*: a is 1: DOWN"):
        chosen((), (), machine(a=(DOWN, TABLE)))
