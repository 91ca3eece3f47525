"""Qwen3.8-Flash-Next: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_fixtures import FIXTURES, rewrite, write_checkpoint
from reference_fixtures import fixture_directory

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import (
    BF16,
    FP8_BLOCK,
    FP8_TENSOR,
    INT4_GPTQ,
    INT8_GPTQ,
    NVFP4_MODELOPT,
)
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.forms import ModelForms
from dgpp.models.inspection import inspect_checkpoint
from dgpp.models.layers.moe import MoeShape, routed_experts
from dgpp.models.layers.softmax_moe import stacked_experts
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.qwen4_exp.config import parse
from dgpp.models.qwen4_exp.model import Qwen4ExpModel, attention_shape
from dgpp.models.qwen4_exp.ngrams import multipliers, ngram_shape
from dgpp.models.registry import FAMILIES
from dgpp.models.shard import Shard
from dgpp.models.sources import CheckedWeights, Depthwise, LoadedWeights
from dgpp.models.tables import Tables
from kernels_numba.cpu.backend import CpuBackend

TINY = json.loads((FIXTURES / "qwen3.8-flash-next-tiny" / "config.json").read_text())
FACTS = Path(__file__).parents[3] / "deploy" / "facts"
LAYER = "model.language_model.layers.0"


def small(**text: object) -> dict[str, object]:
    return {**TINY, "text_config": TINY["text_config"] | text}


def release(name: str) -> dict[str, object]:
    """The config.json of a release, as far as it is known."""
    return json.loads((FACTS / f"qwen3.8-flash-next-{name}.json").read_text())


MODULES = {
    "expert": f"{LAYER}.mlp.experts.7.up_proj",
    "draft": "mtp.layers.0.mlp.experts.7.up_proj",
    "delta": f"{LAYER}.linear_attn.in_proj_qkv",
    "query": "model.language_model.layers.3.self_attn.q_proj",
    "shared": f"{LAYER}.mlp.shared_expert.down_proj",
    "head": "lm_head",
}
PLAIN = (
    f"{LAYER}.mlp.gate",
    f"{LAYER}.mlp.shared_expert_gate",
    f"{LAYER}.linear_attn.in_proj_a",
    f"{LAYER}.attn_hyper_connection.input_mix_weight_down",
    "model.language_model.layers.1.ple.key_proj",
    "model.language_model.layers.3.self_attn.indexer.index_qk_proj",
    "mtp.layers.0.self_attn.q_proj",
    "mtp.layers.0.mlp.shared_expert.up_proj",
    "mtp.fc_embedding",
    "mtp.fc_hidden",
)


@pytest.mark.parametrize(
    ("name", "expert", "draft", "dense", "head"),
    [
        ("fp8", FP8_BLOCK, FP8_BLOCK, BF16, BF16),
        ("nvfp4", NVFP4_MODELOPT, FP8_BLOCK, BF16, BF16),
        ("autoround-int4", INT4_GPTQ, INT4_GPTQ, FP8_BLOCK, INT8_GPTQ),
    ],
)
def test_formats_follow_the_release(name, expert, draft, dense, head) -> None:
    config = parse(release(name))
    wanted = {"expert": expert, "draft": draft, "head": head}
    for part, module in MODULES.items():
        assert config.format(module) is wanted.get(part, dense), module
    for module in PLAIN:
        assert config.format(module) is BF16, module
    assert config.table_format is FP8_TENSOR
    assert parse(small()).table_format is parse(small()).format(MODULES["expert"]) is BF16


def test_sizes_are_read_from_the_file() -> None:
    config = parse(release("fp8"))
    assert [config.full(layer) for layer in (2, 3, 46, 47, 48)] == [False, True, False, True, True]
    assert (config.rotated, config.ngram_layer) == (64, 1)
    # What the reference system states of the released table.
    shape = ngram_shape(config)
    assert shape.how.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert shape.how.primes[0] == 20_000_003
    assert (len(shape.how.primes), shape.how.offsets[-1]) == (16, 320_001_446)
    assert (shape.total, shape.dim, shape.width) == (320_001_536, 160, 2560)
    assert (shape.how.pad, shape.how.reset) == (248_044, 248_044)
    assert multipliers(parse(small(seed=5))) != multipliers(parse(small()))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("output_gate_type", "silu", "output_gate_type is 'silu'"),
        ("indexer_kv_heads", 2, "indexer_kv_heads is 2"),
        ("layer_types", ["linear_attention"], "layer_types is not 3 of"),
        ("ple_layer_ids", [3], "ple_layer_ids is 3, no linear_attention layer"),
        ("ple_layer_ids", [1, 2], "ple_layer_ids names 2 layers"),
        ("ple_embed_dim", 60, "ple_embed_dim is not a multiple of the 8 heads"),
        ("indexer_budget", 18, "indexer_budget is not a multiple of indexer_compress_ratio"),
        ("indexer_head_dim", 24, "indexer_head_dim is 24, not a multiple of 16"),
        ("eos_token_id", 512, "eos_token_id is 512"),
        ("split_ngram_parts", 3, "split_ngram_parts does not divide"),
        ("num_experts_per_tok", 9, r"num_experts_per_tok is 9, not within 1\.\.8"),
        ("mtp_num_hidden_layers", 2, "mtp_num_hidden_layers is 2"),
        ("mtp_num_hidden_layers", 0, "mtp.num_hidden_layers is 1, not 0"),
        ("hc_count", 0, "hc_count is 0"),
        ("ngram_size", 1, "ngram_size is 1, below 2"),
        ("n_group", 1, "n_group is not known for qwen4_exp"),
        ("hidden_size", "64", "hidden_size"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(small(**{field: value}))


def test_a_draft_level_of_another_kind_is_named() -> None:
    told = TINY["text_config"]["mtp"]
    for field, value in (("rope_theta", 5.0), ("layer_types", ["linear_attention"]),
                         ("mtp_use_hidden_state_from_layer", 3)):  # fmt: skip
        with pytest.raises(CheckpointError, match=f"mtp.{field} is"):
            parse(small(mtp=told | {field: value}))
    with pytest.raises(CheckpointError, match="widths"):
        parse(small(mtp=told | {"widths": 3}))


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("fp8", "quant_method", "awq", "quant_method is 'awq'"),
        ("fp8", "weight_block_size", [64, 64], "weight_block_size is"),
        ("fp8", "modules_to_convert", [], "modules_to_convert is"),
        ("fp8", "modules_to_not_convert", ["mlp.experts"], "modules_to_not_convert names"),
        ("nvfp4", "quant_algo", "FP8", "quant_algo is 'FP8'"),
        ("nvfp4", "ignore", None, "ignore is missing"),
        ("autoround-int4", "group_size", 64, "group_size is 64"),
        ("autoround-int4", "dynamic", {"+:.*x$": {"bits": 3}}, r"dynamic.* is .*3"),
        ("autoround-int4", "dynamic", {"-:(": {}}, r"dynamic.* is no pattern"),
    ],
)
def test_a_quantisation_of_another_kind_is_named(name, field, value, message) -> None:
    config = release(name)
    told = {**config["quantization_config"], field: value}
    with pytest.raises(CheckpointError, match=f"quantization_config.{message}"):
        parse({**config, "quantization_config": told})


def test_a_rank_holds_what_the_release_takes() -> None:
    config = release("fp8")
    # Fewer experts are planned sooner; tests of deployments plan all of them.
    config["text_config"]["num_experts"] = 16
    half = plan_memory(config, MemorySettings(backend="cuda", slots=1), 2)
    # 12 layers of one head of keys and values of 256 in bf16, a key of 128 per four tokens. Four
    # ranks share two heads.
    assert half.token_bytes == 12 * (1024 + 64)
    assert attention_shape(parse(config)).own(Shard(3, 4)).kv_heads == 1
    # 36 recurrences of 24 heads and their convolutions, the open blocks, the last tokens (some more
    # are kept for rows fed in vain) and a convolution's inputs.
    delta = 24 * 128 * 128 + 3 * (2 * 1024 + 3072)
    opened, memory = 12 * 3 * 128, (2 + 32) * 32 + 9 * 10240
    assert half.request_bytes == 4 * (36 * delta + opened + memory)
    items = {item.name: item.bytes for item in half.items}
    held = ngram_shape(parse(config)).held(Shard(0, 2))
    assert items["weights: n-gram table"] == 160 * held[1]
    # Codes of a byte, a scale per 128 × 128, read 32 columns at a time.
    codes = 48 * 16 * 3 * 2560 * 320
    assert codes < items["weights: experts"] < codes * 1.01
    with pytest.raises(ConfigError, match=r"2 cuts .* into 320 columns, which are no whole groups"):
        plan_memory(release("autoround-int4"), MemorySettings(), 2)
    with pytest.raises(ConfigError, match=r"3 does not divide config.json's num_key_value_heads"):
        attention_shape(parse(config)).own(Shard(0, 3))


def test_a_plan_says_where_the_tables_are() -> None:
    keys = MemorySettings(ngram_table="mmap", ngram_table_model="Qwen/Next")
    plan = plan_memory(small(ngram_vocab_size_base=100_000_000), keys)
    assert "ngram_table_model Qwen/Next: tables are those of that checkpoint" in plan.notes
    # 8 heads of about 10^8 rows of 8 values in bf16.
    assert "ngram_table mmap: 11.9 GiB of tables stay in their files" in plan.notes
    assert "weights: n-gram table" not in {item.name for item in plan.items}
    other = json.loads((FIXTURES / "glm-4.7-bf16" / "config.json").read_text())
    notes = plan_memory(other, keys).notes
    assert "ngram_table mmap: the model has no tables of n-grams" in notes
    assert "ngram_table_model: the model has no tables of n-grams" in notes


def test_forms_that_the_family_takes() -> None:
    family = FAMILIES["qwen4_exp"]
    assert family.settle(TINY).mtp_experts == "fp8"
    assert family.settle(TINY, ModelForms(mtp_expert_format="bf16_fused")).mtp_experts != "fp8"
    with pytest.raises(ConfigError, match="mtp_expert_format: bf16 does not apply"):
        family.settle(TINY, ModelForms(mtp_expert_format="bf16"))


MOE = MoeShape(
    hidden=32, experts=3, top=2, intermediate=8, shared=1, normalise=True, scale=1.0, eps=1e-6
)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_experts_in_two_tensors_are_those_in_many(tmp_path: Path, world: int) -> None:
    rng = np.random.default_rng(1)
    sides = rng.integers(0, 1 << 16, (3, 2, 8, 32)).astype(np.uint16)
    downs = rng.integers(0, 1 << 16, (3, 32, 8)).astype(np.uint16)
    many = {
        f"x.experts.{e}.{part}_proj.weight": ("BF16", values)
        for e in range(3)
        for part, values in (("gate", sides[e, 0]), ("up", sides[e, 1]), ("down", downs[e]))
    }
    two = {
        "x.experts.gate_up_proj": ("BF16", sides.reshape(3, 16, 32)),
        "x.experts.down_proj": ("BF16", downs),
    }
    for rank in range(world):
        held = []
        for name, tensors in (("many", many), ("two", two)):
            binding = Binding(write_checkpoint(tmp_path / name, tensors))
            source = LoadedWeights(binding, CpuBackend(1, 1), Shard(rank, world))
            if name == "many":
                held.append(routed_experts(source, "x", MOE, BF16))
            else:
                held.append(stacked_experts(source, "x", MOE))
            binding.finish()
            assert held[-1].intermediate == 8 // world
        for side in ("gate_up", "down"):
            first, second = (getattr(experts, side).data for experts in held)
            np.testing.assert_array_equal(first, second)


def test_a_kernel_that_every_rank_has_whole(tmp_path: Path) -> None:
    values = np.arange(40, dtype=np.float32).reshape(10, 1, 4)
    checkpoint = write_checkpoint(tmp_path, {"conv": ("F32", values)})
    source = LoadedWeights(Binding(checkpoint), CpuBackend(1, 1), Shard(1, 4))
    kernel = source.depthwise("item", [Depthwise("conv", 10, whole=True)], 4)
    np.testing.assert_array_equal(kernel.array[:40].reshape(4, 10), values[:, 0].T)
    assert source.account.replicated == source.account.total == 160


def bind(directory: Path, *, drafts: bool = False, tables: Path | None = None) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    elsewhere = Tables(checkpoint=None if tables is None else Checkpoint(tables))
    source = CheckedWeights(binding, tables=elsewhere)
    Qwen4ExpModel(parse(checkpoint.config), source, drafts=drafts)
    binding.finish()
    assert all(name.startswith("model.visual.") for name in binding.ignored)


@pytest.fixture(scope="module")
def whole() -> Path:
    return fixture_directory("qwen3.8-flash-next-bf16")


def changed(whole: Path, tmp_path: Path, change) -> Path:
    rewrite(whole / "model.safetensors", tmp_path / "model.safetensors", change)
    (tmp_path / "config.json").write_text((whole / "config.json").read_text())
    return tmp_path


def test_the_fixture_binds_whole(whole: Path) -> None:
    bind(whole)
    bind(whole, drafts=True)


def test_a_table_that_is_elsewhere() -> None:
    rounded = fixture_directory("qwen3.8-flash-next-autoround")
    bind(rounded, tables=fixture_directory("qwen3.8-flash-next-fp8"), drafts=True)
    with pytest.raises(CheckpointError, match=r"engine.ngram_table_model names a checkpoint"):
        bind(rounded)


@pytest.mark.parametrize("name", ["fp8", "autoround"])
def test_inspection_accounts_for_every_tensor(name: str) -> None:
    found = inspect_checkpoint(Checkpoint(fixture_directory(f"qwen3.8-flash-next-{name}")))
    groups = [*found.formats, found.vectors, found.draft, *found.ignored]
    assert sum(group.tensors for group in groups) == found.tensors
    assert sum(group.bytes for group in groups) == found.bytes
    looked_up = [group for group in found.formats if "looked up" in group.name]
    # Four shards of a table, or a word of where it is.
    assert [group.parts for group in looked_up] == ([4] if name == "fp8" else [])
    assert [note.split(", which")[0] for note in found.notes] == (
        [] if name == "fp8" else ["its table of 4352 rows is in another checkpoint"]
    )


def test_releases_may_count_the_layer_from_one(whole: Path, tmp_path: Path) -> None:
    def change(tensors) -> None:
        for name in [name for name in tensors if ".ple." in name]:
            tensors[name.replace("layers.1.ple", "layers.2.ple")] = tensors.pop(name)

    bind(changed(whole, tmp_path, change), drafts=True)


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}.attn_hyper_connection.block_inject_weight.weight",
        f"{LAYER}.mlp.shared_expert_gate.weight",
        "model.language_model.layers.1.ple.norm_conv.weight",
        "model.language_model.layers.1.ple.ple_embedding.ngram_heads_offsets",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight",
        "model.language_model.layers.3.self_attn.indexer.k_layernorm.weight",
        "model.language_model.hyper_connection_mixer.hc_norm.weight",
        "mtp.fc_hidden.weight",
    ],
)
def test_a_missing_tensor_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(changed(whole, tmp_path, lambda tensors: tensors.pop(name)))


def test_a_norm_before_a_sublayer_is_no_part_of_it(whole: Path, tmp_path: Path) -> None:
    def change(tensors) -> None:
        tensors[f"{LAYER}.input_layernorm.weight"] = ["BF16", [64], bytes(128)]

    with pytest.raises(CheckpointError, match=f"does not know: {LAYER}.input_layernorm.weight"):
        bind(changed(whole, tmp_path, change))
