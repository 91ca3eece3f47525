"""A rank's lanes, the roles and the memory of its end of the bus, before any device is opened."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace
from rdma_files import DOWN, TABLE, UP, make_devices
from serving import ROOT

from actors import launch
from actors.boot import BusBoot, Lane
from actors.bus import bus_files, bus_lanes, bus_layout, planned_lanes, share_bus
from actors.rank import take_node_settings
from actors.world import topology
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.errors import ConfigError
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.net.verbs.slab import BusSlab

CONFIG = ROOT / "tests" / "fixtures" / "glm-4.7-bf16" / "config.json"
BUS = BusBoot((Lane("a", 3), Lane("b", 5)))


def settings(**more):
    engine = {"backend": "cpu", "load": "dummy"} | more.pop("engine", {})
    document = {"model": str(CONFIG), "nodes": ["localhost"] * 2, "engine": engine} | more
    return resolve(document, "f", site=SiteSettings())


@pytest.fixture
def devices(tmp_path, monkeypatch):
    for name in ("DGPP_ROCE_DEVICES", "DGPP_ROCE_GID_INDICES"):
        monkeypatch.delenv(name, raising=False)
    return make_devices(tmp_path, a=(UP, TABLE), b=(UP, TABLE), c=(DOWN, TABLE))


@pytest.mark.parametrize(
    ("names", "gids", "lanes"),
    [
        ("", "", (Lane("a", 3), Lane("b", 3))),
        ("b", "", (Lane("b", 3),)),
        ("b, a", "5 3", (Lane("b", 5), Lane("a", 3))),
    ],
)
def test_lanes_are_the_environments_or_those_that_serve(
    devices, monkeypatch, names, gids, lanes
) -> None:
    monkeypatch.setenv("DGPP_ROCE_DEVICES", names)
    monkeypatch.setenv("DGPP_ROCE_GID_INDICES", gids)
    assert bus_lanes(settings(), 1, devices) == lanes


@pytest.mark.parametrize(
    ("names", "gids", "said"),
    [
        ("x", "", "auto is the RoCE bus here, and rank 1 has none: DGPP_ROCE_DEVICES: no x here"),
        ("c", "", "DGPP_ROCE_DEVICES: c is 1: DOWN: check its cable"),
        ("a", "4", "DGPP_ROCE_GID_INDICES: a has no GID 4; it has 0, 1, 2, 3, 5"),
        ("a", "x", r"DGPP_ROCE_GID_INDICES: expected integers in 0\.\.255, got x"),
    ],
)
def test_a_rank_without_its_lanes_is_told_the_remedy(
    devices, monkeypatch, names, gids, said
) -> None:
    monkeypatch.setenv("DGPP_ROCE_DEVICES", names)
    monkeypatch.setenv("DGPP_ROCE_GID_INDICES", gids)
    with pytest.raises(ConfigError, match=said):
        bus_lanes(settings(), 1, devices)


def test_ranks_started_apart_need_devices_before_anything_loads(monkeypatch) -> None:
    monkeypatch.setenv("DGPP_ROCE_DEVICES", "nowhere")
    with pytest.raises(ConfigError, match=r"engine\.collective: auto is the RoCE bus here"):
        launch.deploy(settings(), log_json=False, apart=True)
    assert launch.deploy(settings(), log_json=False).boot.bus is None


def test_the_poller_starts_first_and_its_memory_is_planned() -> None:
    boot = replace(launch.deploy(settings(), log_json=False).boot, bus=BUS)
    assert [role.role for role in topology(boot).roles][:2] == ["poller", "engine"]
    assert "poller" not in {role.role for role in topology(replace(boot, bus=None)).roles}
    config = launch.read_json(CONFIG)
    sizes = {
        item.name: item.bytes for item in plan_memory(config, MemorySettings(lanes=2), 2).items
    }
    # Both pools, each way: a slot's payload and two cells. What else is there is small.
    lane = 2 * (32 * (8192 + 2 * 64) + 16 * (262_144 + 2 * 64))
    assert 0 <= sizes["RoCE bus"] - 2 * lane < 4096
    assert "collective" not in sizes


@pytest.mark.parametrize(
    ("more", "backend", "lanes"),
    [
        ({}, "cpu", 0),
        ({"engine": {"collective": "verbs"}}, "cpu", 2),
        ({"nodes": ["a", "b"]}, "cpu", 2),
        ({"nodes": ["a", "b"], "node_env": [{"DGPP_ROCE_DEVICES": "r0"}, {}]}, "cpu", 1),
        ({"nodes": ["a", "b"]}, "cuda", 2),
        ({"nodes": ["a", "b"]}, "scripted", 0),
    ],
)
def test_a_plan_for_elsewhere_has_the_lanes_that_are_named_or_both(more, backend, lanes) -> None:
    assert planned_lanes(settings(**more), backend) == lanes


def test_engine_and_poller_see_one_memory() -> None:
    boot = replace(launch.deploy(settings(), log_json=False).boot, bus=BUS)
    engine, poller = share_bus(boot)
    layout = bus_layout(boot)
    slabs = [BusSlab(bus_files(files), 1, layout) for files in (engine, poller)]
    slabs[0].blame(0)
    assert slabs[1].blamed(1) == 0
    os.eventfd_write(slabs[0].bell, 1)
    assert os.eventfd_read(slabs[1].bell) == 1
    for slab, files in zip(slabs, (engine, poller), strict=True):
        slab.close()
        bus_files(files).close()


def test_a_rank_of_the_same_host_takes_its_own_nodes_settings() -> None:
    env = [{"DGPP_ROCE_DEVICES": "r0", "DGPP_MLOCK": "off"}, {"DGPP_ROCE_DEVICES": "r1"}]
    told = settings(node_env=env)
    environ = {"DGPP_ROCE_DEVICES": "r0", "DGPP_MLOCK": "off", "HOME": "/"}
    take_node_settings(environ, told, 1)
    assert environ == {"DGPP_ROCE_DEVICES": "r1", "HOME": "/"}
    exported = {"DGPP_ROCE_DEVICES": "r9"}
    take_node_settings(exported, told, 1)
    assert exported == {"DGPP_ROCE_DEVICES": "r9"}
