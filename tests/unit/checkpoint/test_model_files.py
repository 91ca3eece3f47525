"""Where a model's files are found, with weights and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgpp.checkpoint.model_files import find_model
from dgpp.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "sizes.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_checkpoint_is_a_directory_with_a_tokenizer(folder: Path) -> None:
    assert find_model(str(folder)) == (folder, folder / "config.json", True)
    with pytest.raises(CheckpointError, match=r"a file alone needs engine\.load dummy"):
        find_model(str(folder / "config.json"))


def test_without_weights_a_tokenizer_may_be_absent(folder: Path) -> None:
    for model in (folder, folder / "config.json"):
        assert find_model(str(model), weights=False) == (folder, folder / "config.json", False)
    (folder / "tokenizer.json").write_text("{}")
    for model in (folder, folder / "config.json"):
        assert find_model(str(model), weights=False).text


def test_a_file_of_another_name_stands_for_itself(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    sizes = folder / "sizes.json"
    assert find_model(str(sizes), weights=False) == (folder, sizes, False)
