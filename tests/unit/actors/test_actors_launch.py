"""What is settled before anything is loaded, with the scripted engine and no model weights."""

import json
import os
import shutil
from pathlib import Path

import pytest

from actors import launch
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.engine.room import Room
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.registry import FAMILIES
from kernels_numba.gpu.device import Device

TINY = Path(__file__).parents[2] / "fixtures" / "tiny-chat"


@pytest.fixture(autouse=True)
def _all_cores(monkeypatch):
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def deploy(directory, **engine):
    document = {"model": str(directory), "engine": {"backend": "scripted", **engine}}
    settings = resolve(document, "f", site=SiteSettings())
    return launch.deploy(settings, log_json=False).boot


def test_a_pool_larger_than_the_scripted_engine_holds_is_refused():
    with pytest.raises(ConfigError, match=r"engine.kv_capacity: 17179869184 .* at most 268435456"):
        deploy(TINY, kv_capacity=2**34)
    assert deploy(TINY, kv_capacity=2**28).limits.blocks == 2**22


@pytest.mark.parametrize("stated", [None, "4096", 0, -1, 1.5, True, [4096]])
def test_a_context_length_of_another_shape_is_named(folder, stated):
    config = {"vocab_size": 512, "max_position_embeddings": stated}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json: max_position_embeddings: expected"):
        deploy(folder)


@pytest.mark.parametrize(("stated", "ceiling"), [(100, 100), (2**40, 8192)])
def test_the_context_is_the_models_or_the_pools(folder, stated, ceiling):
    config = {"vocab_size": 512, "max_position_embeddings": stated}
    (folder / "config.json").write_text(json.dumps(config))
    assert deploy(folder).limits.position_ceiling == ceiling


@pytest.mark.parametrize(
    ("given", "kwargs"),
    [
        ({}, {}),
        ({"thinking": False}, {"enable_thinking": False}),
        ({"thinking": True, "enable_thinking": True}, {"enable_thinking": True}),
        ({"clear_thinking": True}, {"clear_thinking": True}),
    ],
)
def test_the_thinking_switch_has_one_name(given, kwargs):
    assert deploy(TINY, default_chat_template_kwargs=given).served.template_kwargs == kwargs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.25),
        ("top_p", 0.5),
        ("top_k", 7),
        ("min_p", 0.125),
        ("repetition_penalty", 1.5),
        ("presence_penalty", -1.5),
        ("frequency_penalty", 0.5),
    ],
)
def test_sampling_defaults_reach_the_front_ends(name, value):
    document = {"model": str(TINY), "engine": {"backend": "scripted"}, "sampling": {name: value}}
    settings = resolve(document, "f", site=SiteSettings())
    served = launch.deploy(settings, log_json=False).boot.served
    assert getattr(served.sampling, name) == value


def test_threads_are_the_ones_that_run(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    assert launch.kernel_threads(0) == launch.kernel_threads(cores) == cores
    assert launch.kernel_threads(0, 2 * cores) == 1
    assert launch.kernel_threads(0, 2) == max(1, cores // 2)
    assert launch.kernel_threads(cores, 2) == cores
    with pytest.raises(ConfigError, match=rf"engine\.threads: {cores + 1}, .* {cores} cores"):
        launch.kernel_threads(cores + 1)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    assert launch.kernel_threads(0) == 1
    with pytest.raises(ConfigError, match=r"engine\.threads: 2, this process may use 1 cores"):
        launch.kernel_threads(2)


@pytest.mark.parametrize(
    ("backend", "unified", "shares"), [("cpu", False, 4), ("cuda", False, 1), ("cuda", True, 4)]
)
def test_what_is_free_is_for_all_ranks_that_take_of_it(backend, unified, shares):
    """Ranks on CPUs share the host's memory; each GPU has its own, unless it has the host's."""
    settings = resolve({"model": str(TINY), "world_size": 4}, "f", site=SiteSettings())
    room = Room(1 << 30, "here", unified=unified)
    assert [launch.sharers(settings, backend, room, rank) for rank in range(4)] == [shares] * 4
    apart = resolve({"model": str(TINY), "nodes": ["a", "b"]}, "f", site=SiteSettings())
    assert [launch.sharers(apart, backend, room, rank) for rank in range(2)] == [1, 1]


def test_a_family_that_a_backend_does_not_compute_is_named_before_weights(folder, monkeypatch):
    fixtures = Path(__file__).parents[2] / "fixtures"
    device = Device(0, "NVIDIA H200", (9, 0), 132, 9 << 30, 10 << 30, 13000, unified=False)
    monkeypatch.setattr(launch, "choose_backend", lambda *_: ("cuda", device))
    for kind, family in FAMILIES.items():
        found = next(
            path
            for path in sorted(fixtures.glob("*/config.json"))
            if json.loads(path.read_text()).get("model_type") == kind
        )
        shutil.copy(found, folder / "config.json")
        if kind == "glm4_moe":
            assert deploy(folder, backend="auto").backend == "cuda"
            continue
        said = f"engine.backend: cuda does not compute {family.name} yet; set it to cpu"
        with pytest.raises(ConfigError, match=said):
            deploy(folder, backend="auto")
