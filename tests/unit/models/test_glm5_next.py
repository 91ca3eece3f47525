"""GLM-5.3-Flash: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, release, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import BF16, FP8_BLOCK, NVFP4_COMPRESSED
from dgpp.errors import CheckpointError
from dgpp.models.glm5_next.config import parse
from dgpp.models.glm5_next.model import Glm5NextModel
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.sources import CheckedWeights

FIXTURE = FIXTURES / "glm-5.3-flash-bf16"
FP8, HYBRID = release("glm-5.3-flash-fp8"), release("glm-5.3-flash-nvfp4-fp8")


def small(**text: object) -> dict[str, object]:
    config = json.loads((FIXTURE / "config.json").read_text())
    config["text_config"] |= text
    return config


def test_sizes_and_formats_are_read_from_the_file() -> None:
    config = parse(small())
    assert [config.sparse(layer) for layer in range(6)] == [False, False, True, False, True, True]
    assert [config.dense(layer) for layer in (1, 2, 5)] == [True, False, False]
    config = parse(HYBRID)
    prefix = "model.language_model.layers"
    assert config.format(f"{prefix}.3.mlp.experts.9.up_proj") is NVFP4_COMPRESSED
    assert config.format(f"{prefix}.45.mlp.experts.9.up_proj") is FP8_BLOCK
    assert config.format(f"{prefix}.4.mlp.shared_experts.up_proj") is FP8_BLOCK
    assert config.format(f"{prefix}.3.self_attn.q_b_proj") is FP8_BLOCK
    for module in (f"{prefix}.3.self_attn.kv_b_proj", f"{prefix}.3.self_attn.indexer.wq_b",
                   f"{prefix}.45.eh_proj", "lm_head"):  # fmt: skip
        assert config.format(module) is BF16, module
    assert parse(FP8).format(f"{prefix}.3.mlp.experts.9.up_proj") is FP8_BLOCK


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("mhc", False, "mhc is False"),
        ("qk_rope_head_dim", 8, "qk_rope_head_dim is 8"),
        ("index_kpool_always_select_tail", False, "index_kpool_always_select_tail is False"),
        ("index_kpool", 3, "index_topk is not a multiple of index_kpool 3"),
        ("layer_types", ["linear_attention"], "layer_types is not 5 of"),
        ("indexer_types", ["full", "shared"], "indexer_types is not full"),
        ("qk_head_dim", 48, "qk_head_dim is 48"),
        ("kv_lora_rank", 40, "kv_lora_rank is 40, not a multiple of 16"),
        ("hc_mult", 0, "hc_mult is 0"),
        ("router_bias", 1, "router_bias is not known for glm5_next"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(small(**{field: value}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kda_layers", [0, 1], r"kda_layers is \[0, 1\], not \[0, 1, 3\]"),
        ("full_attn_layers", [2], "full_attn_layers is not the other layers"),
        ("short_conv_kernel_size", 1, "short_conv_kernel_size is 1, not within 2..64"),
        ("causal", True, "causal"),
    ],
)
def test_delta_layers_are_checked(field: str, value: object, message: str) -> None:
    told = small()["text_config"]["linear_attn_config"] | {field: value}
    with pytest.raises(CheckpointError, match=message):
        parse(small(linear_attn_config=told))


def test_a_rank_holds_what_the_release_takes() -> None:
    settings = MemorySettings(backend="cuda", slots=1, drafts=True)
    plan = plan_memory(FP8, settings, 4)
    # Twelve latents of 512 values and as many index keys of 128 per four tokens, in bf16.
    assert plan.token_bytes == 12 * (512 + 128 // 4) * 2
    # 34 recurrences of 16 heads and their convolutions, in float32; twelve open pools.
    delta = 16 * 128 * 128 + 3 * 3 * 16 * 128
    assert plan.request_bytes == (34 * delta + 12 * 3 * 256) * 4
    # A quarter of 305.8 GiB of files, and more for what every rank has whole.
    assert 305.8 / 4 < plan.weight_bytes / 2**30 < 305.8 / 4 + 4
    hybrid = plan_memory(HYBRID, settings, 4)
    items = {item.name: item.bytes for item in hybrid.items}
    codes = 288 * 3 * 4096 * 512
    # Codes of half a byte, a scale per 16 and a factor per row; the draft layer's codes of a byte
    # with their grid of scales, read 32 columns at a time.
    experts = 42 * (codes * 9 // 16 + 288 * 4 * (2 * 512 + 4096))
    assert experts < items["weights: experts"] < experts + codes * 1.02


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    Glm5NextModel(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()
    assert all(name.startswith("model.visual.") for name in binding.ignored)


def changed(tmp_path: Path, change) -> Path:
    rewrite(FIXTURE / "model.safetensors", tmp_path / "model.safetensors", change)
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "model.language_model.layers.0.hc_attn_fn",
        "model.language_model.layers.1.self_attn.k_conv1d.weight",
        "model.language_model.layers.2.self_attn.indexer.index_kpool_compress_ape",
        "model.language_model.layers.3.self_attn.f_b_proj.weight",
        "model.language_model.layers.5.self_attn.indexer.index_kpool_compress_gate",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    bind(FIXTURE)
    bind(FIXTURE, drafts=True)
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(tmp_path, lambda tensors: tensors.pop(name)))


def test_a_draft_layer_has_no_connections(tmp_path: Path) -> None:
    name = "model.language_model.layers.5.hc_attn_fn"

    def change(tensors) -> None:
        tensors[name] = tensors["model.language_model.layers.0.hc_attn_fn"]

    with pytest.raises(CheckpointError, match=f"does not know: {name}$"):
        bind(changed(tmp_path, change))
