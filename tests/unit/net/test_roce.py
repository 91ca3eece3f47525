"""RDMA devices as the kernel describes them: no link-local address is ever chosen."""

from __future__ import annotations

import pytest

from dgpp.errors import ConfigError
from dgpp.net.roce import chosen, devices, site_lines

LINK_LOCAL = "fe80:0000:0000:0000:4ab0:2dff:fe00:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a09:0001"
IPV6 = "fd00:0000:0000:0000:0000:0000:0000:0005"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


@pytest.fixture
def machine(tmp_path):
    """Devices with state and (address, type) of each entry, as files like the kernel's."""

    def make(**found):
        for name, (state, gids) in found.items():
            port = tmp_path / name / "ports" / "1"
            for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
                (port / folder).mkdir(parents=True)
            (port / "state").write_text(state + "\n")
            (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
            (port / "link_layer").write_text("Ethernet\n")
            for index, (address, kind) in enumerate(gids):
                (port / "gids" / str(index)).write_text(address + "\n")
                if address != NONE:
                    (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
                    (port / "gid_attrs/ndevs" / str(index)).write_text("enp1s0\n")
        return tmp_path

    return make


TABLE = [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV4, V1), (IPV4, V2), (NONE, ""), (IPV6, V2)]
UP, DOWN = "4: ACTIVE", "1: DOWN"


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
