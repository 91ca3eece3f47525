"""GLM-5.3: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_fixtures import FIXTURES, release, rewrite

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import BF16, INT4_PACKED, INT8_PACKED
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.glm_moe_dsa.config import parse
from dgpp.models.glm_moe_dsa.model import GlmDsaModel
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.sources import CheckedWeights

FIXTURE = FIXTURES / "glm-5.3-bf16"
RELEASE = release("glm-5.3-int4-int8")


def small() -> dict[str, object]:
    return json.loads((FIXTURE / "config.json").read_text())


def group(bits: int, target: str, **more) -> dict[str, object]:
    weights = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 64,
               "symmetric": True, "actorder": None, "dynamic": False, **more}  # fmt: skip
    return {"format": "pack-quantized", "weights": weights, "targets": [target]}


def quantised(**groups) -> dict[str, object]:
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "kv_cache_scheme": None,
        "config_groups": groups,
        "ignore": ["lm_head", r"re:.*self_attn\.indexer\..*", "re:.*mlp\\.gate$"],
    }


def test_sizes_and_formats_are_read_from_the_file() -> None:
    config = parse(small())
    assert [config.selects(layer) for layer in range(8)] == [True] * 3 + [False] * 3 + [True] * 2
    assert [config.dense(layer) for layer in (2, 3, 7)] == [True, False, False]
    assert config.format("model.layers.3.mlp.experts.0.up_proj") is BF16
    config = parse(RELEASE)
    assert sum(config.selects(layer) for layer in range(78)) == 21
    assert config.format("model.layers.3.mlp.experts.17.up_proj") is INT4_PACKED
    assert config.format("model.layers.77.mlp.shared_experts.up_proj") is INT8_PACKED
    assert config.format("model.layers.40.self_attn.kv_b_proj") is INT8_PACKED
    for module in ("model.layers.2.self_attn.o_proj", "model.layers.78.self_attn.o_proj",
                   "model.layers.5.self_attn.indexer.wq_b", "lm_head"):  # fmt: skip
        assert config.format(module) is BF16, module


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rope_interleave", False, "rope_interleave is False"),
        ("index_topk_pattern", "FFS", "index_topk_pattern is 'FFS'"),
        ("indexer_types", ["full"], "indexer_types is not 7 of"),
        ("indexer_types", ["shared"] + ["full"] * 6, "begins with a layer that shares"),
        ("first_k_dense_replace", 2, "first_k_dense_replace is 2"),
        ("qk_head_dim", 32, "qk_head_dim is 32, its parts are 24"),
        ("kv_lora_rank", 40, "kv_lora_rank is 40, not a multiple of 16"),
        ("qk_rope_head_dim", 18, "qk_rope_head_dim turns 18 of 16"),
        ("sliding_window", 4, "sliding_window is not known for glm_moe_dsa"),
        ("quantised", None, "quantised is not known"),
        ("quantization_config", {"quant_method": "fp8"}, "quant_method is 'fp8'"),
        ("quantization_config", quantised(a=group(3, "re:.*")), "num_bits is 3, not 4 or 8"),
        (
            "quantization_config",
            quantised(a=group(4, "re:.*", group_size=128)),
            "group_size is 128, not 64",
        ),
        ("quantization_config", quantised(a=group(4, "re:(")), r"targets names 're:\('"),
        (
            "quantization_config",
            quantised(a=group(4, "re:.*", actorder="group")),
            "an order of activations",
        ),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse({**small(), field: value})


def test_a_rank_of_four_holds_what_the_release_takes() -> None:
    plan = plan_memory(RELEASE, MemorySettings(backend="cuda", slots=1, drafts=True), 4)
    # 79 rows of 512 + 64 values and 22 index keys of 128, in bf16, whole on every rank.
    assert plan.token_bytes == (79 * 576 + 22 * 128) * 2
    assert plan.request_bytes == 0
    items = {item.name: item.bytes for item in plan.items}
    # 75 layers of 256 experts: codes of half a byte and a scale of two per 64; one draft layer.
    sparse = 75 * 256 * 3 * 6144 * 512 * 34 // 64
    assert items["weights: experts"] == sparse + 256 * 3 * 6144 * 512 * 2
    # The reference system states about 99 GiB for a rank.
    assert 95 << 30 < plan.weight_bytes < 103 << 30
    with pytest.raises(ConfigError, match="128 does not divide"):
        plan_memory(RELEASE, MemorySettings(), 128)


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    GlmDsaModel(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()


def changed(tmp_path: Path, change) -> Path:
    rewrite(FIXTURE / "model.safetensors", tmp_path / "model.safetensors", change)
    (tmp_path / "config.json").write_text((FIXTURE / "config.json").read_text())
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.indexer.k_norm.bias",
        "model.layers.3.self_attn.kv_b_proj.weight",
        "model.layers.6.self_attn.indexer.weights_proj.weight",
        "model.layers.7.self_attn.indexer.wk.weight",
        "model.layers.7.shared_head.norm.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    bind(FIXTURE)
    bind(FIXTURE, drafts=True)
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(tmp_path, lambda tensors: tensors.pop(name)))


def test_a_layer_that_shares_a_selection_has_no_indexer(tmp_path: Path) -> None:
    name = "model.layers.4.self_attn.indexer.wk.weight"

    def change(tensors) -> None:
        tensors[name] = tensors["model.layers.0.self_attn.indexer.wk.weight"]

    with pytest.raises(CheckpointError, match=f"does not know: {name}$"):
        bind(changed(tmp_path, change))
