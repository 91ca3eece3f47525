"""What `dgpp doctor` finds on a node, and what it says to mend it."""

from __future__ import annotations

import os
import shutil
import socket
from collections import namedtuple

import pytest
from msgspec.structs import replace
from serving import TINY

from dgpp.cluster import examine as examination
from dgpp.cluster.examine import examine
from dgpp.cluster.messages import Examine, Finding
from dgpp.cluster.place import Place
from dgpp.cluster.record import ProcessRecord, boot_id, start_ticks, write_record
from dgpp.engine import backends
from dgpp.engine.backends import Choice
from dgpp.errors import ConfigError
from dgpp.net.listening import Listen
from dgpp.net.paths import path_of
from kernels_numba.gpu import probe
from kernels_numba.gpu.device import Device, installed
from kernels_numba.gpu.errors import CudaError


@pytest.fixture
def request_(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", "")
    place = Place(str(tmp_path / "log"), str(tmp_path / "stage"), "d")
    return Examine(place, 0, 1, "scripted", False, (), (), str(TINY), "", ())


def wrong(request):
    return [(f.what, f.remedy) for f in examine(request) if f.level == "error"]


def test_a_node_that_is_fit(request_):
    assert wrong(request_) == []
    assert {finding.level for finding in examine(request_)} <= {"ok", "warning"}


def test_folders_that_cannot_be_written_and_disks_that_are_full(request_, tmp_path, monkeypatch):
    (tmp_path / "log").write_text("in the way")
    assert wrong(request_) == [
        (
            f"{request_.place.logs}: Not a directory",
            "name a folder that can be written: DGPP_LOG_DIR, DGPP_STAGE_DIR",
        )
    ]
    (tmp_path / "log").unlink()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 5 << 20))
    assert wrong(request_) == [
        (f"{folder}: 5 MiB are free", "make room for 1 GiB")
        for folder in (request_.place.logs, request_.place.stage)
    ]


NAMED = "name as model its ORG/NAME or the folder that it is in"


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("some/absent-model", "dgpp fetch some/absent-model"),
        ("/nope/my model", f"copy the model there, or {NAMED}"),
        ("~/nope", f"copy the model there, or {NAMED}"),
        ("./nope/model", f"copy the model there, or {NAMED}"),
        ("gpt2", NAMED),
        ("org/a..b", NAMED),
    ],
)
def test_a_model_that_is_not_there(request_, model, remedy):
    ((said, found),) = wrong(replace(request_, model=model))
    assert model in said
    assert found == remedy


def test_a_file_in_place_of_a_model_or_a_folder_that_a_peer_lacks(request_, tmp_path):
    (tmp_path / "file").touch()
    ((said, remedy),) = wrong(replace(request_, model=str(tmp_path / "file")))
    assert "is a file" in said
    assert remedy == NAMED
    ((_, remedy),) = wrong(replace(request_, rank=1, model="/nope/my model"))
    assert remedy == "dgpp fetch '/nope/my model' on rank 0's machine brings that folder there"


def test_a_file_is_a_model_where_no_weights_are_read(request_, tmp_path):
    config = tmp_path / "tiny.json"
    config.write_text("{}")
    request = replace(request_, model=str(config), backend="cpu")
    ((said, _),) = wrong(request)
    assert said == f"model: {config} is a file; a file alone needs engine.load dummy"
    assert wrong(replace(request, weights=False)) == []


@pytest.mark.skipif(installed(), reason="has CuPy, perhaps a driver too")
def test_a_driver_that_is_missing(request_):
    ((said, remedy),) = wrong(replace(request_, backend="cuda"))
    # The words of the start, which are whole by themselves.
    with pytest.raises(ConfigError) as refused:
        backends.choose_backend("cuda")
    assert said == str(refused.value)
    assert said.endswith("; or engine.backend cpu")
    assert remedy == ""


def gpu(index):
    return Device(index, "Toy", (9, 0), 4, 1 << 30, 2 << 30, 13000, unified=False)


FIXTURES = TINY.parent


MEANT = "engine.backend cpu says that this is meant"


def of_backend(request):
    said = [finding for finding in examine(request) if finding.what.startswith("engine.backend")]
    return [(finding.level, finding.words) for finding in said]


@pytest.mark.parametrize(
    ("backend", "model", "found"),
    [
        ("cuda", "glm-4.7-bf16", ("ok", "engine.backend cuda is cuda: device 3, Toy")),
        ("auto", "glm-4.7-bf16", ("ok", "engine.backend auto is cuda: device 3, Toy")),
        # What the start would refuse, or not take.
        (
            "cuda",
            "mimo-bf16",
            ("error", "engine.backend: cuda does not compute mimo yet — set it to cpu"),
        ),
        (
            "auto",
            "mimo-bf16",
            (
                "warning",
                f"engine.backend auto takes the CPU: cuda does not compute mimo yet — {MEANT}",
            ),
        ),
        # Nothing to ask of.
        ("auto", "absent", ("ok", "engine.backend auto is cuda: device 3, Toy")),
    ],
)
def test_the_rank_s_own_device_is_asked_for_and_whether_it_computes_the_model(
    request_, monkeypatch, backend, model, found
):
    asked = []
    monkeypatch.setattr(probe, "ask_device", lambda index: asked.append(index) or gpu(index))
    request = replace(request_, backend=backend, model=str(FIXTURES / model), gpus=(3,))
    assert of_backend(request) == [found]
    # No device mends what none computes.
    known = found[0] == "error"
    assert asked == ([] if known else [3])
    assert len(of_backend(replace(request, gpus=(3, 1)))) == 1 + ("device" in found[1])
    assert asked == ([] if known else [3, 3, 1])


@pytest.mark.parametrize("present", [True, False])
def test_a_gpu_that_auto_cannot_use_is_a_warning(request_, monkeypatch, present):
    def broken(_index):
        raise CudaError("the driver is too old: install 580")

    monkeypatch.setattr(probe, "ask_device", broken)
    monkeypatch.setattr(backends, "seems_present", lambda: present)
    ((level, words),) = of_backend(replace(request_, backend="auto", gpus=(0, 1)))
    if not present:
        assert (level, words) == ("ok", "engine.backend auto is cpu")
        return
    assert level == "warning"
    assert words.startswith("engine.backend auto takes the CPU: the driver is too old: install 580")


def test_devices_that_nothing_is_computed_on_are_told(request_, monkeypatch):
    monkeypatch.setattr(probe, "ask_device", gpu)
    glm = replace(request_, model=str(FIXTURES / "glm-4.7-bf16"), gpus=(1, 0), told=(1, 0))
    remedy = "leave it out, or engine.backend cuda"
    told = [Finding("warning", "engine.devices 1, 0: not used, the CPU computes", remedy)]
    for backend, model, expected in (
        ("cpu", "glm-4.7-bf16", told),
        ("auto", "mimo-bf16", told),
        ("auto", "glm-4.7-bf16", []),
        ("cuda", "glm-4.7-bf16", []),
        ("scripted", "glm-4.7-bf16", []),
    ):
        request = replace(glm, backend=backend, model=str(FIXTURES / model))
        found = [finding for finding in examine(request) if "engine.devices" in finding.what]
        assert found == expected
    found = examine(replace(glm, backend="cpu", told=()))
    assert all("engine.devices" not in finding.what for finding in found)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("wanted", ["auto", "shm", "nccl", "verbs"])
@pytest.mark.parametrize("backend", ["scripted", "cpu", "cuda"])
def test_a_collective_that_the_start_would_refuse_is_found_before(
    request_, monkeypatch, backend, wanted, apart
):
    """The start's own words, on every node whose ranks are to sum."""
    monkeypatch.setattr(examination, "choose_backend", lambda name, *_: Choice(name))
    request = replace(request_, backend=backend, collective=wanted, apart=apart, world=2)
    try:
        path_of(wanted, backend, apart=apart)
        refused = []
    except ConfigError as error:
        refused = [(str(error), "")]
    assert wrong(request) == refused
    assert wrong(replace(request, world=1)) == []
    expected = {"cuda": wanted == "shm"}.get(
        backend, wanted == "nccl" or (wanted == "shm" and apart)
    )
    assert bool(refused) is expected


def test_no_finding_says_its_remedy_twice(request_):
    finding = Finding("error", "no adapter (see docs/x.md)", "see docs/x.md")
    assert finding.words == "no adapter (see docs/x.md)"
    assert Finding("error", "no adapter", "see docs/x.md").words == "no adapter — see docs/x.md"
    rdma = replace(request_, backend="cpu", rdma=True, world=2, devices=("absent",))
    for found in examine(rdma):
        assert found.words.count("docs/networking.md") <= 1


def test_ports_that_are_taken_and_addresses_of_others(request_):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wanted = (
            Listen("ports.metrics", "0.0.0.0", port),
            Listen("http.port", "192.0.2.1", port),
            Listen("ports.journal", "127.0.0.2", port),
        )
        assert wrong(replace(request_, listens=wanted)) == [
            (
                f"ports.metrics: cannot listen on 0.0.0.0:{port}: Address already in use",
                "end who has it, or choose another: ports.metrics of the deployment",
            ),
            (
                f"http.port: cannot listen on 192.0.2.1:{port}: Cannot assign requested address",
                "http.bind_host is no address of this node; 0.0.0.0 is all of them",
            ),
        ]


@pytest.mark.parametrize("key", ["http.port", "ports.journal", "ports.fabric"])
def test_a_port_that_is_taken_comes_with_the_keys_that_choose_another(request_, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = Listen(key, "127.0.0.1", taken.getsockname()[1])
        ((_, remedy),) = wrong(replace(request_, listens=(wanted,)))
    site_key = f"DGPP_{key.split('.')[0 if key == 'http.port' else 1].upper()}_PORT"
    assert remedy == (
        f"end who has it, or choose another: {key} of the deployment, or {site_key} in .env (`dgpp "
        "setup` has an option) where that is silent"
    )


def test_ports_of_a_deployment_that_runs_are_its_own(request_):
    """An operator who looks at what serves is not told to end it."""
    place = request_.place
    place.logs.mkdir(parents=True)
    mine = ProcessRecord(0, os.getpid(), start_ticks(os.getpid()), boot_id(), 0.0, "", "", ())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = Listen("http.port", "127.0.0.1", taken.getsockname()[1])
        request = replace(request_, listens=(wanted,))
        write_record(place.record(0), replace(mine, start_ticks=1))
        assert [what.partition(":")[0] for what, _ in wrong(request)] == ["http.port"]
        write_record(place.record(0), mine)
        assert wrong(request) == []
    said = f"its rank runs (process {os.getpid()}), so its ports are taken"
    assert Finding("ok", said) in list(examine(request))
