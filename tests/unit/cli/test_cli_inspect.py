"""`dgpp inspect` and `dgpp plan`, on a fixture and on settings for a machine that is not here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dgpp.cli.main import main

FIXTURE = Path(__file__).parents[2] / "fixtures" / "glm-4.7-nvfp4"
DRAFTER = FIXTURE.parent / "qwen3.8-27b-dflash2"


@pytest.fixture(autouse=True)
def _no_site(monkeypatch, tmp_path):
    (tmp_path / "empty.env").write_text("")
    monkeypatch.setenv("DGPP_ENV_FILE", str(tmp_path / "empty.env"))


def test_inspect_accounts_for_every_tensor(capsys) -> None:
    assert main(["inspect", str(FIXTURE), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["family"], found["model_type"], found["files"]) == ("glm-4.7", "glm4_moe", 2)
    groups = [*found["formats"], found["vectors"], found["draft"], *found["ignored"]]
    assert sum(group["tensors"] for group in groups) == found["tensors"]
    assert sum(group["bytes"] for group in groups) == found["bytes"]
    by_name = {group["name"]: group for group in found["formats"]}
    # Two dense layers of 3 matrices, two layers of 8 experts and a shared one with 3 each.
    assert by_name["NVFP4 (modelopt)"]["parts"] == 2 * 3 + 2 * 9 * 3
    assert by_name["NVFP4 (modelopt)"]["tensors"] == 3 * by_name["NVFP4 (modelopt)"]["parts"]
    assert [rank["world"] for rank in found["ranks"]] == [1, 2, 4]
    assert found["ranks"][0]["bytes"] > found["ranks"][0]["draft_bytes"] > 0


def test_inspect_prints_what_a_person_reads(capsys) -> None:
    assert main(["inspect", str(FIXTURE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"glm-4.7 (glm4_moe) in {FIXTURE}"
    assert any("NVFP4 (modelopt)" in line for line in lines)
    assert any("model.layers.N.self_attn.k_proj.k_scale" in line for line in lines)


def test_inspect_knows_a_drafter(capsys) -> None:
    assert main(["inspect", str(DRAFTER), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["family"], found["model_type"]) == ("drafter", "dflash2", "qwen3")
    groups = [*found["formats"], found["vectors"], found["draft"], *found["ignored"]]
    assert sum(group["tensors"] for group in groups) == found["tensors"]
    assert sum(group["bytes"] for group in groups) == found["bytes"]
    # All of it in memory: bf16 matrices as they are, vectors in float32, nothing shared.
    vectors = found["vectors"]["bytes"]
    assert found["ranks"][0]["bytes"] == found["bytes"] + vectors
    assert main(["inspect", str(DRAFTER)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"dflash2 (qwen3) in {DRAFTER}\n")
    assert "\ndrafter:\n" in out
    assert "drafts blocks of 8 tokens for a model of 8 layers and 64 values a token" in out


def test_a_drafter_is_no_model_to_be_served(capsys, tmp_path: Path) -> None:
    deployment = tmp_path / "there.json"
    deployment.write_text(json.dumps({"model": str(DRAFTER)}))
    assert main(["plan", str(deployment), "--room", "3"]) == 1
    assert "a DFlash2 drafter: engine.dflash_model names it" in capsys.readouterr().err


def test_inspect_names_what_does_not_fit(capsys, tmp_path: Path) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(FIXTURE, directory)
    (directory / "mtp.safetensors").unlink()
    (directory / "model.safetensors.index.json").unlink()
    assert main(["inspect", str(directory)]) == 1
    error = capsys.readouterr().err
    assert "tensor model.layers.4." in error
    assert "is missing" in error


def test_plan_needs_no_weights(capsys, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    shutil.copy(FIXTURE / "config.json", config)
    deployment = tmp_path / "there.json"
    deployment.write_text(
        json.dumps({"model": str(config), "engine": {"kv_capacity": 65536, "backend": "cuda"}})
    )
    assert main(["plan", str(deployment), "--room", "3"]) == 0
    out = capsys.readouterr().out
    # Four layers of keys and values, 4 heads of 16 values padded to 32, in bf16.
    assert f"{65536 * 4 * 2 * 4 * 32 * 2 / 2**20:12.1f} MiB  kv cache" in out
    assert "MiB  in all, per rank" in out
    assert main(["plan", str(deployment), "--room", "2", "--kv-capacity", "1000000"]) == 1
    assert "free there; largest:" in capsys.readouterr().err
