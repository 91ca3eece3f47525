"""What is settled before anything is loaded, with the scripted engine and no model weights."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from actors import launch, planning
from dgpp.checkpoint.formats import FP8_BLOCK
from dgpp.config.resolve import resolve
from dgpp.config.site import SiteSettings
from dgpp.engine import backends
from dgpp.engine.room import Room
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.glm4_moe.config import Glm4MoeConfig
from dgpp.models.registry import FAMILIES
from kernels_numba.gpu import probe
from kernels_numba.gpu.device import Device
from kernels_numba.gpu.errors import CudaError

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


FIXTURES = Path(__file__).parents[2] / "fixtures"
H200 = Device(0, "NVIDIA H200", (9, 0), 132, 9 << 30, 10 << 30, 13000, unified=False)
GB10 = replace(H200, name="NVIDIA GB10", architecture=(12, 1), shared=99 << 10)


def config_of(kind):
    for path in sorted(FIXTURES.glob("*/config.json")):
        config = json.loads(path.read_text())
        if config.get("model_type") == kind:
            return config
    raise AssertionError(kind)


@pytest.fixture
def device(monkeypatch):
    """Lets this machine have a GPU, whatever is asked for."""

    def have(found):
        monkeypatch.setattr(probe, "ask_device", lambda _index: found)

    have(H200)
    return have


OR_CPU = "leave it out, or set engine.backend to cpu"


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_that_gpus_do_not_compute_is_the_cpus_or_refused(folder, device, caplog, kind):
    (folder / "config.json").write_text(json.dumps(config_of(kind)))
    if kind == "glm4_moe":
        assert deploy(folder, backend="auto", load="dummy").backend == "cuda"
        assert not caplog.messages
        return
    why = f"cuda does not compute {FAMILIES[kind].name} yet"
    assert deploy(folder, backend="auto", load="dummy").backend == "cpu"
    assert caplog.messages == [f"engine.backend auto takes the CPU: {why}"]
    with pytest.raises(ConfigError, match=f"^engine.backend: {why}; set it to cpu$"):
        deploy(folder, backend="cuda", load="dummy")
    assert deploy(folder, backend="cpu", load="dummy").backend == "cpu"
    assert len(caplog.messages) == 1


REFUSED = [
    *(
        (kind, {}, f"engine.backend: cuda does not compute {family.name} yet; set it to cpu")
        for kind, family in FAMILIES.items()
        if kind != "glm4_moe"
    ),
    *(
        (
            "glm4_moe",
            {key: value},
            f"engine.{key}: {value} is not on the cuda backend yet; {OR_CPU}",
        )
        for key, value in (
            ("kv_dtype", "fp8"),
            ("bf16_weights", "bf12"),
            ("bf16_weights", "bf12+bf16"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "engine", "said"), REFUSED)
def test_what_no_gpu_computes_is_said_before_one_is_looked_for(
    folder, monkeypatch, capsys, kind, engine, said
):
    """A driver that the user is told to install would not help. The plan says it last, beside
    nothing that it contradicts, and shows the whole."""

    def asked(_index):
        raise AssertionError

    monkeypatch.setattr(probe, "ask_device", asked)
    (folder / "config.json").write_text(json.dumps(config_of(kind)))
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        deploy(folder, backend="cuda", load="dummy", **engine)
    document = {"model": str(folder), "engine": {"backend": "cuda", **engine}}
    settings = resolve(document, "f", site=SiteSettings())
    assert planning.plan_elsewhere(settings, planning.Elsewhere(), folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("MiB  in all, per rank") for line in lines)
    assert lines[-2:] == [said, planning.LATER]
    assert planning.LATER.startswith("not servable yet: ")
    assert not [line for line in lines if "are packed" in line or "are held" in line]
    document["engine"]["backend"] = "cpu"
    settings = resolve(document, "f", site=SiteSettings())
    planning.plan_elsewhere(settings, planning.Elsewhere(), folder)
    lines = capsys.readouterr().out.splitlines()
    assert planning.LATER not in lines
    assert not [line for line in lines if "would be" in line]


@pytest.mark.parametrize(
    ("change", "found", "says"),
    [
        ({"n_routed_experts": 1024}, H200, ""),
        ({"n_routed_experts": 2048}, H200, "n_routed_experts up to 1024, config.json has 2048"),
        # Sixteen rows of eight bytes an expert, beside 8 KiB: 91 KiB / 128.
        ({"n_routed_experts": 728}, GB10, ""),
        ({"n_routed_experts": 729}, GB10, "n_routed_experts up to 728, config.json has 729"),
        ({"n_routed_experts": 64, "num_experts_per_tok": 32}, H200, ""),
        (
            {"n_routed_experts": 64, "num_experts_per_tok": 33},
            H200,
            "num_experts_per_tok up to 32, config.json has 33",
        ),
        ({"head_dim": 20}, H200, "head_dim in multiples of 8, config.json has 20"),
        # 128 keys and values of two bytes and 48 bytes a value, beside 4 KiB, in steps of 32.
        ({"head_dim": 384}, H200, ""),
        ({"head_dim": 392}, H200, "head_dim up to 384, config.json has 392"),
        ({"head_dim": 160}, GB10, ""),
        ({"head_dim": 168}, GB10, "head_dim up to 160, config.json has 168"),
        ({"vocab_size": 1 << 21}, H200, ""),
        (
            {"vocab_size": (1 << 21) + 1},
            H200,
            "vocab_size up to 2097152, config.json has 2097153",
        ),
        # Gate and up of 65535 blocks of 128 rows, of 128 bytes each.
        ({"intermediate_size": 65535 * 64}, H200, ""),
        (
            {"intermediate_size": 65535 * 64 + 4},
            H200,
            "no matrix of 8388488 × 64 values, which config.json's intermediate_size 4194244 makes",
        ),
        # Gate and up of 8192 bytes a row: 4 GiB are 524288 rows.
        ({"hidden_size": 4096, "intermediate_size": 1 << 18}, H200, ""),
        (
            {"hidden_size": 4096, "intermediate_size": 1 << 18},
            GB10,
            "no matrix of 524288 × 4096 values, which config.json's intermediate_size 262144 makes",
        ),
        ({"hidden_size": 4096, "intermediate_size": (1 << 18) - 8}, GB10, ""),
    ],
)
def test_sizes_that_the_kernels_do_not_take_are_named_before_weights(
    folder, device, caplog, monkeypatch, change, found, says
):
    """By the limit and the key of config.json; `auto` takes the CPU."""
    monkeypatch.setattr(launch, "require_fit", lambda *_: None)
    device(found)
    (folder / "config.json").write_text(json.dumps({**config_of("glm4_moe"), **change}))
    if not says:
        assert deploy(folder, backend="auto", load="dummy").backend == "cuda"
        return
    why = f"cuda on {found.name} takes {says}"
    with pytest.raises(ConfigError) as caught:
        deploy(folder, backend="cuda", load="dummy")
    # What no device takes is said before this one is known.
    told = why if found is GB10 else f"cuda takes {says}"
    assert str(caught.value) == f"engine.backend: {told}; set it to cpu"
    assert deploy(folder, backend="auto", load="dummy").backend == "cpu"
    assert caplog.messages == [f"engine.backend auto takes the CPU: {why}"]


def test_ranks_share_out_what_a_device_does_not_hold():
    """Rows of matrices and ids of the vocabulary; what ranks sum is read in fours."""
    family, config = FAMILIES["glm4_moe"], config_of("glm4_moe")
    wide = {**config, "intermediate_size": 65535 * 256, "vocab_size": 1 << 23}
    assert len(family.lacks(wide, 1, H200)) == len(family.lacks(wide, 2, H200)) == 2
    assert family.lacks(wide, 4, H200) == ()
    odd = {**config, "hidden_size": 62}
    assert family.lacks(odd, 1, H200) == ()
    (said,) = family.lacks(odd, 2)
    assert said == "cuda takes hidden_size in multiples of 4, config.json has 62"


def test_fp8_that_other_rows_follow_begins_a_line_of_scales(monkeypatch):
    """Eight rows share a line: of gate and up, of each rank's experts, of what their down gives."""
    monkeypatch.setattr(Glm4MoeConfig, "format", lambda *_: FP8_BLOCK)
    family, config = FAMILIES["glm4_moe"], config_of("glm4_moe")
    even = {"hidden_size": 64, "intermediate_size": 304, "moe_intermediate_size": 48}
    assert family.lacks({**config, **even}, 2) == ()
    for field, value, world, step in (
        ("intermediate_size", 300, 1, 8),
        ("intermediate_size", 296, 2, 16),
        ("moe_intermediate_size", 36, 1, 8),
        ("moe_intermediate_size", 40, 2, 16),
        ("hidden_size", 68, 2, 8),
    ):
        (said,) = family.lacks({**config, **even, field: value}, world)
        assert said == f"cuda takes {field} in multiples of {step} in FP8, config.json has {value}"
    monkeypatch.undo()
    odd = {**config, "intermediate_size": 300, "moe_intermediate_size": 36}
    assert family.lacks(odd, 2) == ()


def test_a_model_without_experts_is_not_asked_for_them():
    dense = {**config_of("glm4_moe"), "n_routed_experts": 2048}
    dense["first_k_dense_replace"] = dense["num_hidden_layers"]
    assert FAMILIES["glm4_moe"].lacks(dense) != ()
    assert FAMILIES["glm4_moe"].lacks({**dense, "num_nextn_predict_layers": 0}) == ()


def test_a_gpu_that_cannot_be_used_is_one_line_of_the_log(folder, monkeypatch, caplog):
    def broken(_index):
        raise CudaError("no NVIDIA driver answers: 999; see nvidia-smi")

    monkeypatch.setattr(probe, "ask_device", broken)
    (folder / "config.json").write_text(json.dumps(config_of("glm4_moe")))
    for present in (False, True):
        monkeypatch.setattr(backends, "seems_present", lambda present=present: present)
        assert deploy(folder, backend="auto", load="dummy").backend == "cpu"
    why = "no NVIDIA driver answers: 999; see nvidia-smi"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"engine.backend auto takes the CPU: {why}")
    ]


def test_devices_are_not_passed_over_in_silence(folder, device, caplog):
    (folder / "config.json").write_text(json.dumps(config_of("glm4_moe")))
    assert deploy(folder, backend="cuda", load="dummy", devices=[1]).backend == "cuda"
    assert deploy(folder, backend="cpu", load="dummy").backend == "cpu"
    assert not caplog.messages
    said = "engine.devices 1: not used, the CPU computes"
    assert deploy(folder, backend="cpu", load="dummy", devices=[1]).device == 1
    assert caplog.messages == [said]
    (folder / "config.json").write_text(json.dumps(config_of("mimo_v2")))
    assert deploy(folder, backend="auto", load="dummy", devices=[1]).backend == "cpu"
    why = "cuda does not compute mimo yet"
    assert caplog.messages[1:] == [f"engine.backend auto takes the CPU: {why}", said]


EXPERTS, REMEDY = "n_routed_experts up to", "set it to cpu"


@pytest.mark.parametrize(
    ("kind", "change", "backend", "node", "note"),
    [
        ("glm4_moe", {}, "auto", "", ""),
        (
            "mimo_v2",
            {},
            "cuda",
            "",
            f"engine.backend: cuda does not compute mimo yet; {REMEDY}",
        ),
        (
            "mimo_v2",
            {},
            "auto",
            "",
            "engine.backend auto takes the CPU: cuda does not compute mimo yet",
        ),
        (
            "mimo_v2",
            {},
            "auto",
            "gb10",
            "engine.backend auto takes the CPU: cuda does not compute mimo yet",
        ),
        (
            "glm4_moe",
            {"n_routed_experts": 1000},
            "cuda",
            "gb10",
            f"engine.backend: cuda on a GB10 takes {EXPERTS} 728, config.json has 1000; {REMEDY}",
        ),
        ("glm4_moe", {"n_routed_experts": 1000}, "cuda", "", ""),
        (
            "glm4_moe",
            {"n_routed_experts": 1025},
            "cuda",
            "",
            f"engine.backend: cuda takes {EXPERTS} 1024, config.json has 1025; {REMEDY}",
        ),
        ("mimo_v2", {}, "cpu", "", ""),
    ],
)
def test_the_plan_notes_what_the_start_would_refuse_or_not_take(
    folder, device, capsys, kind, change, backend, node, note
):
    (folder / "config.json").write_text(json.dumps({**config_of(kind), **change}))
    document = {"model": str(folder), "engine": {"backend": backend}}
    settings = resolve(document, "f", site=SiteSettings())
    planning.plan_elsewhere(settings, planning.NODES.get(node, planning.Elsewhere()), folder)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "engine.backend" in line] == ([note] if note else [])
    assert (lines[-1] == planning.LATER) is note.startswith("engine.backend: ")
