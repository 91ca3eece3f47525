"""What a DFlash2 drafter's config.json may say, and what it binds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError
from dgpp.models.dflash2.config import is_drafter, parse
from dgpp.models.dflash2.model import DFlash2
from dgpp.models.sources import CheckedWeights

FIXTURE = FIXTURES / "qwen3.8-27b-dflash2"


def config() -> dict[str, object]:
    return json.loads((FIXTURE / "config.json").read_text())


def test_a_drafter_is_known_by_its_architecture() -> None:
    assert is_drafter(config())
    assert not is_drafter({"model_type": "qwen3"})
    parsed = parse(config())
    assert parsed.dflash_config.target_layer_ids == (0, 2, 3, 5, 6)
    assert (parsed.sliding_window, parsed.dflash_config.block_size) == (24, 8)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("is_causal", True, "is_causal is True"),
        ("layer_types", ["full_attention"] * 3, "layer_types is not sliding_attention"),
        ("num_hidden_layers", 4, "layer_types is not 4 layers"),
        ("sliding_windows", 3, "sliding_windows is not known"),
        ("num_key_value_heads", 3, "num_attention_heads is not a multiple"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**config(), field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("conv_kernel_size", 3, "conv_kernel_size is 3, not 2"),
        ("conv_group_size", 24, "conv_group_size does not divide"),
        ("block_size", 1, "block_size is 1"),
        ("mask_token_id", 512, "mask_token_id is 512"),
        ("target_layer_ids", [0, 8], "target_layer_ids is .* not ascending layers"),
        ("target_layer_ids", [2, 0], "target_layer_ids is .* not ascending layers"),
        ("selector_rank", 0, "selector_rank is 0, not within 1..16384"),
        ("causal", True, "causal"),
    ],
)
def test_what_a_block_cannot_be_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**config(), "dflash_config": {**config()["dflash_config"], field: value}})


def bind(directory: Path) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    DFlash2(parse(checkpoint.config), CheckedWeights(binding))
    binding.finish()


@pytest.mark.parametrize(
    "name",
    [
        "candidate_selector.successor_codebook",
        "layers.1.attention_conv.base_kernel",
        "layers.2.mlp_conv.kernel_projection.weight",
        "hidden_norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    bind(FIXTURE)
    rewrite(
        FIXTURE / "model.safetensors",
        tmp_path / "model.safetensors",
        lambda tensors: tensors.pop(name),
    )
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(tmp_path)
