"""Weights restored from an image are those that were built, bit for bit; misfits are named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from model_fixtures import FIXTURES, rewrite

from dgpp.checkpoint import image_file
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.engine.loading import Loading
from dgpp.models import resident_image
from dgpp.models.forms import ModelForms
from dgpp.models.shard import Shard
from dgpp.models.sources import LoadedWeights
from dgpp.models.tables import RESIDENT
from kernels_numba.cpu.backend import CpuBackend

PLAIN = ModelForms()


class Kept(CpuBackend):
    """Remembers what it holds, and how much of it was made of a checkpoint."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.held: list = []
        self.built = 0

    def matrix(self, parts):
        self.built += 1
        self.held.append(super().matrix(parts))
        return self.held[-1]

    def vector(self, values):
        self.held.append(super().vector(values))
        return self.held[-1]

    def adopt(self, held):
        self.held.append(super().adopt(held))
        return self.held[-1]


def load(folder: Path, images: Path, forms: ModelForms = PLAIN, shard: Shard | None = None):
    """(backend, account, notes) of a load."""
    backend = Kept()
    loading = Loading(Checkpoint(folder), backend, shard or Shard(), forms, RESIDENT, drafts=True)
    _, account = loading.run(images)
    return backend, account, loading.notes


def same(first: Kept, second: Kept) -> None:
    """`first` may have begun with what it gave up."""
    assert len(first.held) >= len(second.held) > 50
    for one, other in zip(first.held[-len(second.held) :], second.held, strict=True):
        mine, its = first.held_arrays(one), second.held_arrays(other)
        assert mine[:3] == its[:3]
        for a, b in zip(mine.arrays, its.arrays, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


CASES = [
    ("qwen3.8-27b-bf16", ModelForms(dense_weights="fp8", bf16_weights="bf12")),
    ("glm-4.7-nvfp4", PLAIN),
    ("glm-5.3-flash-bf16", ModelForms(bf16_weights="bf12")),
]


@pytest.mark.parametrize(("name", "forms"), CASES)
def test_restored_is_built(tmp_path: Path, name: str, forms: ModelForms) -> None:
    built, _, notes = load(FIXTURES / name, tmp_path, forms)
    assert built.built > 20
    assert "weights built in" in notes[0]
    assert " GiB written in " in notes[1]
    restored, _, notes = load(FIXTURES / name, tmp_path, forms)
    assert restored.built == 0
    assert [" GiB restored in " in note for note in notes] == [True]
    same(built, restored)


def test_every_rank_has_its_image_and_its_account(tmp_path: Path) -> None:
    folder = FIXTURES / "glm-4.7-nvfp4"
    shards = [Shard(rank, 2, split_embedding=True) for rank in range(2)]
    built = [load(folder, tmp_path, shard=shard) for shard in shards]
    assert len(list(tmp_path.glob("*.img"))) == 2
    for shard, (backend, account, _) in zip(shards, built, strict=True):
        restored, told, notes = load(folder, tmp_path, shard=shard)
        assert restored.built == 0, notes
        same(backend, restored)
        assert vars(told) == vars(account)
        assert told.digests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of its own."""
    return Path(shutil.copytree(FIXTURES / "qwen3.8-27b-bf16", tmp_path / "model"))


def refused(folder: Path, images: Path, **more) -> str:
    """The warning of a load that did not take the image there, and built; it is taken again next
    time."""
    backend, _, notes = load(folder, images, **more)
    assert backend.built
    warnings = [note for note in notes if note.startswith("warning: resident image")]
    assert len(warnings) == 1, notes
    again, _, _ = load(folder, images, **more)
    assert again.built == 0
    same(backend, again)
    return warnings[0]


def the_image(images: Path) -> Path:
    (path,) = images.glob("*.img")
    return path


def test_a_damaged_or_truncated_image_is_named_and_built_anew(folder, tmp_path: Path) -> None:
    images = tmp_path / "images"
    load(folder, images)
    path = the_image(images)
    content = bytearray(path.read_bytes())
    content[image_file.PAGE + 100] ^= 1
    path.write_bytes(content)
    assert "have another checksum; built anew" in refused(folder, images)
    os.truncate(path, len(content) // 2)
    assert "truncated" in refused(folder, images)
    path.write_bytes(b"something else" * 1000)
    assert f"{path}: not a weight image" in refused(folder, images)


def test_a_stale_image_is_named_by_what_changed(folder, tmp_path: Path, monkeypatch) -> None:
    images = tmp_path / "images"
    load(folder, images)

    def change(tensors) -> None:
        kind, shape, blob = tensors["lm_head.weight"]
        tensors["lm_head.weight"] = [kind, shape, blob[2:] + blob[:2]]

    weights = folder / "model.safetensors"
    rewrite(weights, weights, change)
    assert "is of checkpoint " in refused(folder, images)
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert "is of checkpoint " in refused(folder, images)
    monkeypatch.setattr(resident_image, "_code_digest", lambda: "newer")
    assert "this is newer; built anew" in refused(folder, images)
    monkeypatch.setattr(resident_image.platform, "machine", lambda: "riscv64")
    _, _, notes = load(folder, images)
    assert "written" in notes[-1]
    assert len(list(images.glob("*.img"))) == 2


def test_an_image_of_another_rank_or_form_is_not_taken(folder, tmp_path: Path) -> None:
    images = tmp_path / "images"
    load(folder, images, shard=Shard(1, 2))
    other = the_image(images)
    _, _, notes = load(folder, images, shard=Shard(0, 2))
    assert "written" in notes[-1]
    own = next(path for path in images.glob("*.img") if path != other)
    shutil.copy(other, own)
    assert "is of rank 1, this is 0" in refused(folder, images, shard=Shard(0, 2))
    shutil.copy(other, own)
    assert "is of rank 1" in refused(folder, images, shard=Shard(0, 2))


def test_an_image_that_ends_early_or_holds_another_shape_is_not_taken(
    folder, tmp_path: Path, monkeypatch
) -> None:
    images = tmp_path / "images"
    real = resident_image.ImageWriter.write

    def short(self, facts, tensors, *rest):
        return real(self, facts, tensors[:-1], *rest)

    def swapped(self, facts, tensors, *rest):
        return real(self, facts, [tensors[-1], *tensors[1:]], *rest)

    for write, message in ((short, "ends before the model does"), (swapped, "its tensor 0 is")):
        monkeypatch.setattr(resident_image.ImageWriter, "write", write)
        (the_image(images) if images.exists() else tmp_path / "none").unlink(missing_ok=True)
        load(folder, images)
        monkeypatch.setattr(resident_image.ImageWriter, "write", real)
        assert message in refused(folder, images)


def test_a_full_disk_is_a_warning(folder, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(image_file, "RESERVE", 1 << 60)
    backend, account, notes = load(folder, tmp_path / "images")
    assert backend.built
    assert account.total == 0
    assert notes[-1].startswith("warning: resident image ")
    assert "not written: " in notes[-1]
    assert not list((tmp_path / "images").iterdir())


def test_a_directory_that_cannot_be_made_is_a_warning(folder, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _, _, notes = load(folder, tmp_path / "file" / "images")
    assert "Not a directory" in notes[-1]


def test_nothing_is_kept_unless_asked(folder, tmp_path: Path) -> None:
    backend = Kept()
    loading = Loading(Checkpoint(folder), backend, Shard(), PLAIN, RESIDENT, drafts=False)
    loading.run(None)
    assert loading.notes == []
    assert isinstance(backend, CpuBackend)
    assert issubclass(resident_image.RecordedWeights, LoadedWeights)
