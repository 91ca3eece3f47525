"""Where a model's name leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpp.checkpoint.host_memory import available_memory
from dgpp.checkpoint.resolve import hub_directory, models_directory, resolve_model
from dgpp.errors import CheckpointError, MemoryPlanError


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), {}) == tmp_path


def test_own_downloads_and_the_hub_cache(tmp_path: Path) -> None:
    environ = {"DGPP_MODELS_DIR": str(tmp_path / "own"), "HF_HOME": str(tmp_path / "hf")}
    with pytest.raises(CheckpointError, match="model org/name is neither in"):
        resolve_model("org/name", environ)
    root = tmp_path / "hf" / "hub" / "models--org--name"
    (root / "snapshots" / "abc").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="refs/main is missing"):
        resolve_model("org/name", environ)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("gone")
    with pytest.raises(CheckpointError, match="refs/main names gone"):
        resolve_model("org/name", environ)
    (root / "refs" / "main").write_text("abc\n")
    assert resolve_model("org/name", environ) == root / "snapshots" / "abc"
    own = tmp_path / "own" / "org" / "name"
    own.mkdir(parents=True)
    assert resolve_model("org/name", environ) == own


@pytest.mark.parametrize("name", ["a", "../x/y", "a/b/c", "/no/such/directory", "a/../b"])
def test_names_that_cannot_be(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="neither"):
        resolve_model(name, {"DGPP_MODELS_DIR": str(tmp_path), "HF_HOME": str(tmp_path)})


def test_precedence_of_the_variables() -> None:
    environ = {"HF_HUB_CACHE": "/a", "HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}
    assert hub_directory(environ) == Path("/a")
    assert hub_directory({"HF_HOME": "/b"}) == Path("/b/hub")
    assert models_directory(environ) == Path("/c/dgpp/models")


def test_available_memory(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 9 kB\nMemAvailable:   7 kB\n")
    assert available_memory(file) == 7168
    file.write_text("MemTotal: 9 kB\n")
    with pytest.raises(MemoryPlanError, match="MemAvailable"):
        available_memory(file)
