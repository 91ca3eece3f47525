"""MiMo-V2.6-Flash: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, release, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import BF16, FP8_BLOCK, MXFP4_U8
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.mimo_v2.config import QUANTISED, parse
from dgpp.models.mimo_v2.model import MimoModel
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.sources import CheckedWeights

FIXTURE = FIXTURES / "mimo-bf16"
RELEASE = release("mimo-v2.6-flash-mxfp4-fp8")


def small() -> dict[str, object]:
    return json.loads((FIXTURE / "config.json").read_text())


def test_sizes_and_formats_are_read_from_the_file() -> None:
    config = parse(small())
    assert (config.chunks, config.qkv_format, config.expert_format) == (4, BF16, BF16)
    config = parse(RELEASE)
    assert (config.mlp_format, config.expert_format) == (FP8_BLOCK, MXFP4_U8)
    # Four chunks of 16 queries, one key head and one value head: 26.5 blocks of 128 rows each.
    grid = config.qkv_format.tensors(4 * (16 * 192 + 192 + 128), 4096)[1]
    assert grid.shape == (108, 32)
    assert config.qkv_format.tensors(4 * (16 * 192 + 2 * 320), 4096)[1].shape == (116, 32)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("attention_projection_layout", "split", "attention_projection_layout is 'split'"),
        ("add_full_attention_sink_bias", True, "add_full_attention_sink_bias is True"),
        ("n_shared_experts", 1, "n_shared_experts is 1"),
        ("scoring_func", "softmax", "scoring_func is 'softmax'"),
        ("hybrid_layer_pattern", [0, 1], "hybrid_layer_pattern is not 5 of .0, 1."),
        ("moe_layer_freq", [0, 1, 1, 1, 2], "moe_layer_freq is not 5 of .0, 1."),
        ("attention_chunk_size", 16, "attention_chunk_size is 16"),
        ("swa_num_key_value_heads", 6, "swa_num_attention_heads is not a multiple"),
        ("num_key_value_heads", 3, "num_attention_heads is not a multiple"),
        ("partial_rotary_factor", 0.5, "rope_parameters.partial_rotary_factor is 0.334"),
        ("num_experts_per_tok", 9, "num_experts_per_tok"),
        ("use_mla", True, "use_mla is not known for mimo_v2"),
        ("quantised", True, "quantised is not known"),
        ("quantization_config", {"quant_method": "fp8"}, "quantization_config.fmt is None"),
        (
            "quantization_config",
            {**QUANTISED, "ignored_layers": ["lm_head"]},
            "ignored_layers names 'lm_head'",
        ),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**small(), field: value})


def test_a_rank_of_four_holds_what_the_release_takes() -> None:
    plan = plan_memory(RELEASE, MemorySettings(backend="cuda", slots=1), 4)
    items = {item.name: item.bytes for item in plan.items}
    # 47 layers of 256 experts: three matrices of 4096 × 512 codes of half a byte, a scale per 32.
    assert items["weights: experts"] == 47 * 256 * 3 * 4096 * 512 * 17 // 32
    # The reference system states about 44 GB for a rank, embedding included.
    assert 43e9 < plan.weight_bytes < 45e9
    # Nine global layers of one key head of 192 and one of values of 128, in bf16.
    assert plan.token_bytes == 9 * (192 + 128) * 2
    # 39 rings of 128 rows and their slack, two heads each.
    assert plan.request_bytes == 39 * (128 + 32) * 2 * (192 + 128) * 2
    with_drafts = plan_memory(RELEASE, MemorySettings(backend="cuda", slots=1, drafts=True), 4)
    assert with_drafts.request_bytes == plan.request_bytes // 39 * 42
    with pytest.raises(ConfigError, match="8 does not divide"):
        plan_memory(RELEASE, MemorySettings(), 8)


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    MimoModel(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()


def changed(tmp_path: Path, change) -> Path:
    rewrite(FIXTURE / "model.safetensors", tmp_path / "model.safetensors", change)
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    return tmp_path


def test_the_fixture_binds_whole() -> None:
    bind(FIXTURE)
    bind(FIXTURE, drafts=True)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.qkv_proj.weight",
        "model.layers.1.self_attn.attention_sink_bias",
        "model.layers.2.mlp.experts.7.down_proj.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias",
        "model.mtp.layers.2.pre_mlp_layernorm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(tmp_path, lambda tensors: tensors.pop(name)))


def test_sinks_belong_to_windowed_layers_alone(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.attention_sink_bias"

    def change(tensors) -> None:
        tensors[name] = tensors["model.layers.1.self_attn.attention_sink_bias"]

    with pytest.raises(CheckpointError, match=f"does not know: {name}$"):
        bind(changed(tmp_path, change))


def test_a_transposed_projection_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.qkv_proj.weight"

    def change(tensors) -> None:
        tensors[name][1].reverse()

    with pytest.raises(CheckpointError, match=rf"{name} has shape \[64, 512\], not \[512, 64\]"):
        bind(changed(tmp_path, change))
