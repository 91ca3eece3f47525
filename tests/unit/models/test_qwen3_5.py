"""Qwen3.8-27B: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, release, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import BF16, FP8_BLOCK, FP8_CHANNEL, NVFP4_COMPRESSED
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.qwen3_5.config import parse
from dgpp.models.qwen3_5.model import Qwen35Model
from dgpp.models.sources import CheckedWeights

FIXTURE = FIXTURES / "qwen3.8-27b-bf16"
FP8, NVFP4 = release("qwen3.8-27b-fp8"), release("qwen3.8-27b-nvfp4")


def small(**text: object) -> dict[str, object]:
    config = json.loads((FIXTURE / "config.json").read_text())
    config["text_config"] |= text
    return config


def test_sizes_and_formats_are_read_from_the_file() -> None:
    config = parse(small())
    assert (config.rotated, config.full(3), config.full(4)) == (8, True, False)
    assert config.format("model.language_model.layers.0.mlp.up_proj") is BF16
    config = parse(FP8)
    assert config.rotated == 64
    assert config.format("model.language_model.layers.0.mlp.up_proj") is FP8_BLOCK
    assert config.format("model.language_model.layers.9.linear_attn.in_proj_a") is BF16
    assert config.format("mtp.fc") is config.format("lm_head") is BF16


def test_a_release_of_mixed_formats_is_read_from_its_groups() -> None:
    config, layer = parse(NVFP4), "model.language_model.layers.3"
    assert config.format(f"{layer}.mlp.up_proj") is NVFP4_COMPRESSED
    for module in ("self_attn.k_proj", "self_attn.o_proj", "linear_attn.in_proj_z"):
        assert config.format(f"{layer}.{module}") is FP8_CHANNEL
    assert config.format("lm_head") is FP8_CHANNEL
    for module in ("linear_attn.in_proj_b", "linear_attn.conv1d"):
        assert config.format(f"{layer}.{module}") is BF16
    assert config.format("mtp.layers.0.mlp.up_proj") is config.format("mtp.fc") is BF16


def packed(tensors) -> None:
    """The fixture's matrices as the release of mixed formats has them, all zero."""
    config = parse({**small(), "quantization_config": NVFP4["quantization_config"]})
    for name in [name for name in tensors if name.endswith(".weight")]:
        _, shape, _ = tensors[name]
        module = name.removesuffix(".weight")
        if len(shape) != 2 or config.format(module) is BF16:
            continue
        del tensors[name]
        for stored in config.format(module).tensors(*shape):
            width = {"F32": 4, "BF16": 2}.get(stored.dtypes[0], 1)
            blob = bytes(width * math.prod(stored.shape))
            tensors[stored.name_of(module)] = [stored.dtypes[0], list(stored.shape), blob]


@pytest.mark.parametrize(
    "name",
    [
        None,
        "lm_head.weight_scale",
        "model.language_model.layers.0.mlp.gate_proj.weight_global_scale",
        "model.language_model.layers.1.mlp.down_proj.weight_packed",
        "model.language_model.layers.3.self_attn.v_proj.weight_scale",
        "model.language_model.layers.0.linear_attn.out_proj.weight",
    ],
)
def test_a_release_of_mixed_formats_binds_whole(tmp_path: Path, name: str | None) -> None:
    def change(tensors) -> None:
        packed(tensors)
        if name is not None:
            del tensors[name]

    directory = changed(tmp_path, change)
    config = {**small(), "quantization_config": NVFP4["quantization_config"]}
    (directory / "config.json").write_text(json.dumps(config))
    if name is None:
        bind(directory, drafts=True)
        return
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(directory)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), ("format", "marlin-24"), "quantization_config.format is 'marlin-24'"),
        ((), ("kv_cache_scheme", {"num_bits": 8}), "kv_cache_scheme is"),
        ((), ("format", "float-quantized"), "group_0.format is 'nvfp4-pack-quantized'"),
        (("group_0",), ("format", "pack-quantized"), "group_0.format is 'pack-quantized'"),
        (("group_0", "weights"), ("group_size", 32), "weights.group_size is 32, not 16"),
        (("group_1", "weights"), ("strategy", "tensor"), "strategy is 'tensor', not 'channel'"),
        (("group_1", "weights"), ("num_bits", 4), "num_bits is 4, not 8"),
        (("group_1", "weights"), ("dynamic", True), "dynamic scales"),
    ],
)
def test_groups_that_no_format_reads_are_named(path, value, message) -> None:
    config = copy.deepcopy(NVFP4)
    at = config["quantization_config"]
    for name in ("config_groups", *path) if path else ():
        at = at[name]
    at[value[0]] = value[1]
    with pytest.raises(CheckpointError, match=message):
        parse(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("attn_output_gate", False, "attn_output_gate is False"),
        ("output_gate_type", "sigmoid", "output_gate_type is 'sigmoid'"),
        ("layer_types", ["linear_attention"], "layer_types is not 8 of"),
        ("layer_types", ["sliding_attention"] * 8, "layer_types is not 8 of"),
        ("linear_num_value_heads", 10, "linear_num_value_heads is not a multiple"),
        ("linear_conv_kernel_dim", 1, "linear_conv_kernel_dim is 1, below 2"),
        ("mtp_num_hidden_layers", 2, "mtp_num_hidden_layers is 2"),
        ("partial_rotary_factor", 0.5, "rope_parameters.partial_rotary_factor is 0.25"),
        ("num_experts", 8, "num_experts is not known for qwen3_5"),
        ("hidden_size", "64", "hidden_size"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(small(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("text_config", None, "text_config is missing"),
        ("tie_word_embeddings", True, "tie_word_embeddings is True, text_config"),
        ("router", 1, "router is not known for qwen3_5"),
        ("quantization_config", {"quant_method": "gptq"}, "quant_method is 'gptq'"),
    ],
)
def test_what_stands_beside_the_text_model_is_checked(field, value, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**small(), field: value})


def test_a_rank_holds_what_the_release_takes() -> None:
    alone = plan_memory(FP8, MemorySettings(backend="cuda", slots=1))
    # 16 layers of 4 heads of keys and values of 256, in bf16: a KiB per layer and head.
    assert alone.token_bytes == 16 * 4 * 1024
    # 48 recurrences of 48 heads of 128 × 128, and the last three inputs of a convolution each.
    state = 48 * 128 * 128 * 4
    assert alone.request_bytes == 48 * (state + 3 * (2 * 2048 + 6144) * 4)
    half = plan_memory(FP8, MemorySettings(backend="cuda", slots=1), 2)
    assert half.token_bytes * 2 == alone.token_bytes
    assert half.request_bytes * 2 == alone.request_bytes
    # 27 billion parameters, a byte each but for embedding and head.
    assert 27e9 < alone.weight_bytes < 31e9
    drafts = plan_memory(FP8, MemorySettings(backend="cuda", slots=1, drafts=True))
    assert drafts.token_bytes == 17 * 4 * 1024
    with pytest.raises(ConfigError, match="8 does not divide"):
        plan_memory(FP8, MemorySettings(), 8)


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    Qwen35Model(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()
    assert all(name.startswith("model.visual.") for name in binding.ignored)


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
        "model.language_model.layers.0.linear_attn.A_log",
        "model.language_model.layers.1.linear_attn.conv1d.weight",
        "model.language_model.layers.3.self_attn.q_norm.weight",
        "model.language_model.norm.weight",
        "mtp.pre_fc_norm_hidden.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(tmp_path, lambda tensors: tensors.pop(name)))


def test_a_convolution_of_other_taps_is_named(tmp_path: Path) -> None:
    name = "model.language_model.layers.0.linear_attn.conv1d.weight"

    def change(tensors) -> None:
        dtype, (channels, _, _), blob = tensors[name]
        tensors[name] = [dtype, [channels, 1, 3], blob[: len(blob) * 3 // 4]]

    with pytest.raises(CheckpointError, match=rf"{name} has shape \[\d+, 1, 3\], not"):
        bind(changed(tmp_path, change))
