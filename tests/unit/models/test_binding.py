"""A checkpoint with one tensor changed is refused naming the tensor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError
from dgpp.models.registry import family_of
from dgpp.models.sources import CheckedWeights

Q = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.1.mlp.down_proj"


def bind(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    family = family_of(checkpoint.config)
    binding = Binding(checkpoint)
    family.build(family.parse(checkpoint.config), CheckedWeights(binding), drafts=False)
    binding.finish()


def changed(tmp_path: Path, variant: str, change) -> Path:
    source = FIXTURES / f"glm-4.7-{variant}"
    target = tmp_path / variant
    shutil.copytree(source, target)
    (target / "model.safetensors.index.json").unlink(missing_ok=True)
    for shard in source.glob("model*.safetensors"):
        rewrite(shard, target / shard.name, change)
    return target


@pytest.mark.parametrize("variant", ["bf16", "nvfp4"])
def test_the_fixtures_bind_whole(tmp_path: Path, variant: str) -> None:
    bind(FIXTURES / f"glm-4.7-{variant}")
    bind(changed(tmp_path, variant, lambda tensors: None))


def test_a_missing_tensor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {Q} is missing"):
        bind(changed(tmp_path, "bf16", lambda tensors: tensors.pop(Q)))


def test_a_renamed_tensor(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors["model.layers.1.self_attn.query.weight"] = tensors.pop(Q)

    with pytest.raises(CheckpointError, match=f"tensor {Q} is missing"):
        bind(changed(tmp_path, "bf16", change))


def test_an_extra_tensor(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors["model.layers.1.extra"] = ["F32", [1], bytes(4)]

    with pytest.raises(CheckpointError, match=r"does not know: model.layers.1.extra$"):
        bind(changed(tmp_path, "bf16", change))


def test_a_transposed_tensor(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors[Q][1].reverse()

    with pytest.raises(CheckpointError, match=rf"{Q} has shape \[64, 128\], not \[128, 64\]"):
        bind(changed(tmp_path, "bf16", change))


def test_another_dtype(tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors[Q][0] = "F16"

    with pytest.raises(CheckpointError, match=f"{Q} is F16, not BF16"):
        bind(changed(tmp_path, "bf16", change))


def test_another_scale_grid(tmp_path: Path) -> None:
    def change(tensors) -> None:
        name = f"{DOWN}.weight_scale"
        if name in tensors:
            tensors[name] = ["F8_E4M3", [64, 8], tensors[name][2][:512]]

    message = rf"{DOWN}.weight_scale has shape \[64, 8\], not \[64, 16\]"
    with pytest.raises(CheckpointError, match=message):
        bind(changed(tmp_path, "nvfp4", change))


def test_a_missing_factor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{DOWN}.weight_scale_2 is missing"):
        bind(
            changed(tmp_path, "nvfp4", lambda tensors: tensors.pop(f"{DOWN}.weight_scale_2", None))
        )


def test_ignored_scales_may_be_absent(tmp_path: Path) -> None:
    def change(tensors) -> None:
        for name in [n for n in tensors if n.endswith(("input_scale", "k_scale", "v_scale"))]:
            del tensors[name]

    bind(changed(tmp_path, "nvfp4", change))


def test_a_draft_layer_is_bound_even_when_it_is_not_loaded(tmp_path: Path) -> None:
    name = "model.layers.5.eh_proj.weight"
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(tmp_path, "bf16", lambda tensors: tensors.pop(name)))


def test_an_index_must_tell_the_truth(tmp_path: Path) -> None:
    source = FIXTURES / "glm-4.7-nvfp4"
    target = tmp_path / "copy"
    shutil.copytree(source, target)
    (target / "mtp.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"should be in mtp.safetensors, where it is not"):
        bind(target)


def test_no_shard_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: No such file"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        Checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no \*.safetensors file"):
        Checkpoint(tmp_path)
