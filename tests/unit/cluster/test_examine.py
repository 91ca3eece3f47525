"""What the look at a node says of RoCE: devices, pyverbs, memory that may be registered."""

from __future__ import annotations

import contextlib
import resource
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from rdma_files import TABLE, UP, make_devices
from small_disk import disk

from dgpp.cluster import examine as looks
from dgpp.cluster import up
from dgpp.cluster.clock_gap import ClockGap
from dgpp.cluster.deployment import Access, Deployment
from dgpp.cluster.errors import StartError
from dgpp.cluster.messages import Answer, Examine, Finding
from dgpp.cluster.place import Place
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.net.listening import Listen
from dgpp.net.roce import chosen
from dgpp.net.verbs.errors import LibraryError

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Findings about the bus on a made-up node: what is wrong and its remedies."""
    root = make_devices(tmp_path / "sys", a=(UP, TABLE))
    monkeypatch.setattr(looks, "chosen", partial(chosen, root=root))
    monkeypatch.setattr(looks, "load", lambda: SimpleNamespace(name="pyverbs"))
    monkeypatch.setattr(looks, "_may_lock_all", lambda: False)

    def look(devices=(), gids=(), limit=resource.RLIM_INFINITY, backend="cpu"):
        monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
        request = Examine(Place("/l", "/s", "d"), 1, 2, backend, True, devices, gids, "m", "", ())
        return list(looks._rdma(request))

    return look


def test_a_fit_node_says_what_it_will_use(node):
    findings = node(limit=16 * MIB)
    assert {finding.level for finding in findings} == {"ok"}
    said = "; ".join(finding.what for finding in findings)
    assert said == (
        "pyverbs loads; a is 4: ACTIVE at 10.9.0.1, GID 3; "
        "the bus registers 9 MiB with its adapters"
    )
    # 32 slots of 64 KiB each way more, where a GPU may be.
    for backend in ("auto", "cuda"):
        assert node(backend=backend)[-1].what == "the bus registers 13 MiB with its adapters"
    assert node(devices=("a",), gids=(5,))[1].what == "a is 4: ACTIVE at fd00::5, GID 5"


def test_each_lack_is_an_error_with_its_remedy(node, monkeypatch):
    (locked,) = [found for found in node(limit=64 * KIB) if found.level == "error"]
    assert locked.what == "the bus registers 9 MiB with its adapters, 64 KiB may be locked"
    assert "memlock unlimited" in locked.remedy
    absent = node(devices=("b",))[-1]
    assert (absent.level, absent.what) == ("error", "DGPP_ROCE_DEVICES: no b here; there are a")
    assert node(devices=("a",), gids=(9,))[-1].what.startswith("DGPP_ROCE_GID_INDICES: a has no")

    def nothing():
        raise LibraryError("roce bus: no usable pyverbs: install it")

    monkeypatch.setattr(looks, "load", nothing)
    assert node()[0].what == "roce bus: no usable pyverbs: install it"


def test_a_full_disk_is_named_and_keeps_no_probe(tmp_path):
    with disk(tmp_path / "small", "16k") as folder:
        logs = folder / "deployments"
        logs.mkdir()
        with contextlib.suppress(OSError):
            (folder / "full").write_bytes(bytes(1 << 20))
        found = looks._folder(logs)
        assert (found.level, found.what) == ("error", f"{logs}: No space left on device")
        assert list(logs.iterdir()) == []


class Told:
    """A node that keeps what it is asked."""

    def __init__(self, rank: int) -> None:
        self.rank, self.name = rank, f"rank {rank}"
        self.asked: list[Examine] = []
        self.findings: tuple[Finding, ...] = ()
        self.clock_gap = ClockGap()

    def ask(self, request):
        self.asked.append(request)
        return Answer(version="1", now=0.0, findings=self.findings)


@pytest.mark.parametrize(
    ("engine", "rdma"),
    [
        ({"backend": "cpu"}, True),
        ({"backend": "auto", "collective": "verbs"}, True),
        ({"backend": "scripted"}, False),
        ({"backend": "cuda", "collective": "nccl"}, True),
    ],
)
def test_nodes_are_asked_about_roce_where_ranks_sum_over_it(engine, rdma):
    document = {
        "model": "m",
        "nodes": ["a", "b"],
        "node_env": [{}, {"DGPP_ROCE_DEVICES": "r0, r1", "DGPP_ROCE_GID_INDICES": "3 4"}],
        "engine": engine,
    }
    settings = resolve(document, "f", site=SiteSettings())
    deployment = Deployment(Path("f"), settings, Access())
    deployment.nodes = [Told(0), Told(1)]
    up.examine(deployment)
    (first,), (second,) = (node.asked for node in deployment.nodes)
    assert (first.rdma, second.rdma, second.world) == (rdma, rdma, 2)
    assert (second.devices, second.gids) == (("r0", "r1"), (3, 4))
    fabric = Listen("ports.fabric", "0.0.0.0", settings.ports.fabric)
    assert (fabric in first.listens) is rdma
    assert second.listens == ()
    assert (second.collective, second.apart) == (engine.get("collective", "auto"), True)


@pytest.mark.parametrize(
    ("ranks", "told", "asked"),
    [
        ({"nodes": ["a", "b"]}, (), [(0,), (0,)]),
        ({"nodes": ["a", "b"]}, (3, 1), [(3,), (1,)]),
        ({"world_size": 3}, (), [(0, 1, 2)]),
        ({"world_size": 3}, (3, 0, 2), [(3, 0, 2)]),
        ({}, (5,), [(5,)]),
    ],
)
def test_nodes_are_asked_about_the_devices_of_their_ranks(ranks, told, asked):
    document = {"model": "m", **ranks, "engine": {"devices": told}}
    deployment = Deployment(Path("f"), resolve(document, "f", site=SiteSettings()), Access())
    nodes = deployment.nodes = [Told(node.rank) for node in deployment.nodes]
    up.examine(deployment)
    assert [request.gpus for node in nodes for request in node.asked] == asked
    assert {request.told for node in nodes for request in node.asked} == {told}


def test_what_is_amiss_is_said_once_a_line_and_the_error_names_the_nodes():
    settings = resolve({"model": "m", "nodes": ["a", "b", "c"]}, "f", site=SiteSettings())
    deployment = Deployment(Path("f"), settings, Access())
    deployment.nodes = [Told(0), Told(1), Told(2)]
    found = [
        (Finding("ok", "room"), Finding("warning", "its clock", "NTP")),
        (Finding("error", "no room", "make room"), Finding("error", "no port")),
        (Finding("error", "no driver"),),
    ]
    for node, findings in zip(deployment.nodes, found, strict=True):
        node.findings = findings
    said = []
    with pytest.raises(StartError) as error:
        up.require_fit(deployment, said.append)
    assert said == [
        "warning: rank 0: its clock — NTP",
        "error: rank 1: no room — make room",
        "error: rank 1: no port",
        "error: rank 2: no driver",
    ]
    assert str(error.value) == "not started: rank 1, rank 2: not fit, as said above"
