"""`dgpp check forward` on the GLM-4.7 fixtures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from reference_fixtures import fixture_directory
from typer.testing import CliRunner

from dgpp.check.expected import Expected
from dgpp.check.forward import CheckOptions
from dgpp.check.world import device_of
from dgpp.cli.check import app
from dgpp.cli.main import main
from dgpp.engine import backends
from dgpp.errors import CheckpointError, ConfigError
from kernels_numba.gpu import probe
from kernels_numba.gpu.device import Device
from kernels_numba.gpu.errors import CudaError

FIXTURES = Path(__file__).parents[1] / "fixtures"
GPU = Device(0, "Toy", (9, 0), 4, 1 << 30, 2 << 30, 13000, unified=False)


def run(directory: Path, *extra: str):
    arguments = ["--checkpoint", str(directory), "--expected", str(directory / "expected.npz")]
    return CliRunner().invoke(app, ["forward", *arguments, *extra])


@pytest.mark.parametrize("variant", ["bf16", "nvfp4"])
@pytest.mark.parametrize("extra", [[], ["--per-layer"]])
def test_fixtures_are_within_their_tolerance(variant: str, extra: list[str]) -> None:
    result = run(FIXTURES / f"glm-4.7-{variant}", "--json", *extra)
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["ok"]
    assert (report["family"], report["variant"]) == ("glm-4.7", variant)
    assert (report["backend"], report["world"], report["rule"]) == ("cpu", 1, "float32")
    assert report["argmax_agree"] == 1.0
    assert report["logits_max_abs"] < 1e-3
    assert report["greedy_equal"] == report["greedy_total"] == 24
    assert report["router_equal"]
    assert report["mtp_router_equal"]
    assert report["selected_equal"]
    assert all(layer["ok"] for layer in report["layers"])


def test_blocks_and_rounded_rows_are_told() -> None:
    result = run(fixture_directory("deepseek-v4-flash-mxfp4-fp8"))
    assert result.exit_code == 0, result.stdout
    plain, rounded = result.stdout.split("with rounded cache rows:")
    for part in (plain, rounded):
        assert "24 of 24 tokens equal" in part
        assert "  blocks       max |error|" in part
        assert "15 of 15 tokens equal" in part
    assert rounded.rstrip().endswith("ok")


def test_float32_passes_by_the_bf16_rule_too() -> None:
    result = run(FIXTURES / "glm-4.7-bf16", "--json", "--per-layer", "--rule", "bf16")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["failures"]
    assert report["rule"] == "bf16"
    # A tenth of what bf16 may cost is more than float32 does.
    assert all(layer["of_change"] < 1e-3 for layer in report["layers"][1:])


def test_the_bf16_rule_needs_a_stated_bf16_run(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    result = run(directory, "--rule", "bf16", "--tolerance", "1")
    assert isinstance(result.exception, CheckpointError)
    assert "rule bf16: no index.json states" in str(result.exception)
    result = run(directory, "--rule", "fp8")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == "--rule: 'fp8' is not one of auto, float32, bf16"


def test_a_wrong_value_fails_by_name(tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    arrays = dict(np.load(directory / "expected.npz"))
    arrays["logits"][7, 3] += 0.01
    arrays["router_ids"][0, 0] = [6, 7]
    arrays |= {"image_0": np.zeros(2), "attention": np.zeros(2)}
    np.savez(directory / "expected.npz", **arrays)
    result = run(directory)
    assert isinstance(result.exception, ConfigError)
    assert "--tolerance" in str(result.exception)
    result = run(directory, "--tolerance", "0.004")
    assert result.exit_code == 1
    assert "FAIL logits: off by up to 0.0" in result.stdout
    assert "FAIL router ids of layer 2: not identical" in result.stdout
    assert "FAIL attention: holds values that nothing was compared with" in result.stdout
    assert "image_0 was not compared: images are not served" in result.stdout


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "expected.npz", ids=np.zeros(1))
    result = run(tmp_path, "--tolerance", "1")
    assert isinstance(result.exception, ConfigError)
    assert "config.json" in str(result.exception)
    assert run(tmp_path, "--backend", "cuda").exit_code == 1


def test_files_of_another_kind_are_named_by_option_and_what_is_wanted(tmp_path: Path) -> None:
    """Before a tolerance is asked for, and without numpy's advice on pickles."""
    known = FIXTURES / "glm-4.7-bf16"
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    wanted = "expected an .npz archive of arrays, as numpy.savez writes it"
    for wrong in (known / "config.json", tmp_path / "array.npy", tmp_path / "text.npz"):
        result = run(known, "--expected", str(wrong))
        assert isinstance(result.exception, CheckpointError)
        assert str(result.exception) == f"--expected: {wrong}: {wanted}"
        with pytest.raises(CheckpointError, match=wanted):
            Expected(wrong)
    for flag in ("--checkpoint", "--target", "--ngram-table-model"):
        for wrong, said in (
            (known / "config.json", "not a folder: name that of a checkpoint"),
            (tmp_path / "nope", "not a folder: name that of a checkpoint"),
            (tmp_path, "no config.json in it: name the folder of a checkpoint"),
        ):
            result = run(known, flag, str(wrong))
            assert isinstance(result.exception, ConfigError)
            assert str(result.exception) == f"{flag}: {wrong}: {said}"


def test_tables_that_an_index_names_are_not_blamed_on_an_option(tmp_path: Path) -> None:
    model = shutil.copytree(FIXTURES / "glm-4.7-bf16", tmp_path / "model")
    (entry,) = (
        entry
        for entry in json.loads((FIXTURES / "index.json").read_text())
        if (entry["path"], entry["expected"]) == ("glm-4.7-bf16", "expected.npz")
    )
    entry |= {"path": "model", "ngram_table_from": "nope"}
    (tmp_path / "index.json").write_text(json.dumps([entry]))
    result = run(model)
    assert isinstance(result.exception, CheckpointError)
    missing = tmp_path / "nope" / "config.json"
    assert str(result.exception) == f"{missing}: No such file or directory"


def test_expected_values_that_are_not_there_are_named_first(tmp_path: Path) -> None:
    for wrong in (tmp_path / "nope.npz", tmp_path):
        result = run(FIXTURES / "glm-4.7-bf16", "--expected", str(wrong), "--backend", "cuda")
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception) == f"--expected: {wrong}: there is no such file"


def test_an_error_is_one_line_that_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    directory = FIXTURES / "glm-4.7-bf16"
    command = ["check", "forward", "--checkpoint", str(directory), "--expected", "/nope.npz"]
    assert main(command) == 1
    assert capsys.readouterr().err == (
        "dgpp: error: --expected: /nope.npz: there is no such file\n"
    )


class Chosen(Exception):
    """Raised where a check would begin."""


@pytest.mark.parametrize(
    ("extra", "asked", "devices"),
    [
        ([], 0, (0, 1, 0)),
        (["--devices", "3"], 3, (3, 3, 3)),
        (["--devices", "3, 1"], 3, (3, 1, 3)),
    ],
)
def test_ranks_take_the_devices_that_are_named(
    monkeypatch: pytest.MonkeyPatch, extra: list[str], asked: int, devices: tuple[int, ...]
) -> None:
    def begin(_directory: Path, _expected: Path, _tolerances: object, options: CheckOptions):
        taken = tuple(device_of(rank, options.backend, options.devices) for rank in range(3))
        raise Chosen(options.backend, taken, device_of(1, "cpu", options.devices))

    probed: list[int] = []
    monkeypatch.setattr(probe, "ask_device", lambda index: probed.append(index) or GPU)
    monkeypatch.setattr("dgpp.check.forward.open_and_check", begin)
    monkeypatch.setattr("kernels_numba.gpu.device.device_count", lambda: 2)
    result = run(FIXTURES / "glm-4.7-bf16", "--backend", "auto", *extra)
    assert isinstance(result.exception, Chosen)
    assert result.exception.args == ("cuda", devices, 0)
    assert probed == [asked]


@pytest.mark.parametrize(
    ("backend", "devices", "said"),
    [
        ("cpu", "1,0", "warning: --devices 1, 0: not used, the CPU computes\n"),
        ("auto", "3", "warning: --devices 3: not used, the CPU computes\n"),
        ("cpu", "", ""),
        ("cuda", "1,0", ""),
    ],
)
def test_devices_that_nothing_is_computed_on_are_told(
    monkeypatch: pytest.MonkeyPatch, backend: str, devices: str, said: str
) -> None:
    def ask(_index: int) -> Device:
        if backend == "cuda":
            return GPU
        raise CudaError("no NVIDIA driver is installed")

    def begin(*_arguments: object) -> None:
        raise Chosen

    monkeypatch.setattr(probe, "ask_device", ask)
    monkeypatch.setattr(backends, "seems_present", lambda: False)
    monkeypatch.setattr("dgpp.check.forward.open_and_check", begin)
    extra = ["--threads", "1", "--backend", backend, "--devices", devices]
    result = run(FIXTURES / "glm-4.7-bf16", *extra)
    assert isinstance(result.exception, Chosen)
    assert result.stderr == said


@pytest.mark.parametrize("used", [False, True])
def test_a_tolerance_that_an_index_overrides_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, used: bool
) -> None:
    expected = FIXTURES / "glm-4.7-bf16" / "expected.npz"
    if used:
        expected = Path(shutil.copy(expected, tmp_path))

    def begin(*_arguments: object) -> None:
        raise Chosen

    monkeypatch.setattr("dgpp.check.forward.open_and_check", begin)
    arguments = ["forward", "--checkpoint", str(FIXTURES / "glm-4.7-bf16")]
    arguments += ["--expected", str(expected), "--tolerance", "0", "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--backend", "cpu"])
    assert isinstance(result.exception, Chosen)
    said = "warning: --tolerance 0: not used, an index.json states what is near enough\n"
    assert result.stderr == ("" if used else said)


def test_devices_of_another_shape_are_named() -> None:
    for wrong in ("x", "1,", "-1", "256", "1 0"):
        result = run(FIXTURES / "glm-4.7-bf16", "--devices", wrong)
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception).startswith("--devices: expected integers in 0..255")


def test_a_family_that_gpus_do_not_compute_is_the_cpus_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(*arguments: object) -> None:
        raise Chosen(arguments[-1].backend)

    monkeypatch.setattr(probe, "ask_device", lambda _index: GPU)
    monkeypatch.setattr("dgpp.check.forward.open_and_check", begin)
    result = run(FIXTURES / "mimo-bf16", "--backend", "auto", "--tolerance", "1")
    assert isinstance(result.exception, Chosen)
    assert result.exception.args == ("cpu",)
    why = "cuda does not compute mimo yet"
    assert f"warning: --backend auto takes the CPU: {why}" in result.stderr
    result = run(FIXTURES / "mimo-bf16", "--backend", "cuda", "--tolerance", "1")
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"--backend: {why}; take cpu"


@pytest.mark.parametrize(
    ("model", "extra", "said"),
    [
        ("mimo-bf16", [], "--backend: cuda does not compute mimo yet; take cpu"),
        (
            "glm-4.7-bf16",
            ["--kv-dtype", "fp8"],
            "--kv-dtype: fp8 is not on the cuda backend yet; take cpu",
        ),
        (
            "glm-4.7-bf16",
            ["--bf16-weights", "bf12"],
            "--bf16-weights: bf12 is not on the cuda backend yet; take cpu",
        ),
    ],
)
def test_what_no_gpu_computes_is_said_before_one_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, model: str, extra: list[str], said: str
) -> None:
    def asked(_index: int) -> Device:
        raise AssertionError

    monkeypatch.setattr(probe, "ask_device", asked)
    result = run(FIXTURES / model, "--backend", "cuda", "--tolerance", "1", *extra)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == said


@pytest.mark.parametrize("extra", [(), ("--per-layer",)])
def test_another_number_of_layers_is_named(tmp_path: Path, extra: tuple[str, ...]) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURES / "glm-4.7-bf16", directory)
    arrays = dict(np.load(directory / "expected.npz"))
    held = len(arrays["hidden"])
    arrays["hidden"] = arrays["hidden"][:-1]
    np.savez(directory / "expected.npz", **arrays)
    result = run(directory, "--tolerance", "1", *extra)
    assert isinstance(result.exception, CheckpointError)
    assert f"hold {held - 1} hidden states, the model has {held}" in str(result.exception)
