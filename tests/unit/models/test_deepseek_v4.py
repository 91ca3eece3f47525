"""DeepSeek-V4-Flash: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_fixtures import release, rewrite, write_checkpoint
from reference_fixtures import fixture_directory

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.deepseek_v4.config import parse
from dgpp.models.deepseek_v4.model import DeepseekV4Model
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.registry import family_of
from dgpp.models.sources import CheckedWeights, LoadedWeights
from kernels_numba.cpu.backend import CpuBackend

NAME = "deepseek-v4-flash-mxfp4-fp8"


def published(**fields: object) -> dict[str, object]:
    return release(NAME) | fields


def test_layers_are_those_of_the_ratios() -> None:
    config = parse(published())
    ratios = config.compress_ratios
    assert (ratios.count(4), ratios.count(128), config.stages) == (21, 20, 3)
    assert config.rounded
    exact = family_of(published()).exact
    assert exact is not None
    assert not exact(config).rounded
    assert parse(published(compress_ratios=ratios[:43])).stages == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scoring_func", "sigmoid", "scoring_func is 'sigmoid'"),
        ("num_key_value_heads", 8, "num_key_value_heads is 8"),
        ("expert_dtype", "fp8", "expert_dtype is 'fp8'"),
        ("compress_ratios", [0] * 42, "compress_ratios is not 43 ratios"),
        ("compress_ratios", [0] * 43 + [4], "compress_ratios is not 43 ratios"),
        ("compress_ratios", [4, 1, 12] + [4] * 40, r"compress_ratios has \[1, 12\]"),
        ("num_hash_layers", 44, "num_hash_layers is 44"),
        ("o_groups", 6, "num_attention_heads is not a multiple of o_groups"),
        ("qk_rope_head_dim", 256, "qk_rope_head_dim turns 256 of 128"),
        ("head_dim", 500, "head_dim is 500, not a multiple of 16"),
        ("head_dim", 464, "head_dim less qk_rope_head_dim is not a multiple of 64"),
        ("index_head_dim", 96, "index_head_dim is 96, not a power of two"),
        ("dspark_target_layer_ids", [40, 43], "is .40, 43., not ascending layers of 0 to 42"),
        ("dspark_noise_token_id", 129280, "dspark_noise_token_id is 129280, no token"),
        ("num_experts_per_tok", 257, "num_experts_per_tok is 257, not within 1..256"),
        ("quantization_config", None, "quantization_config is missing"),
        ("engram_layer_ids", [1], "engram_layer_ids is not known for deepseek_v4"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(published(**{field: value}))


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("quantization_config", "scale_fmt", "f32"),
        ("quantization_config", "weight_block_size", [32, 32]),
        ("quantization_config", "modules_to_not_convert", ["head"]),
        ("rope_scaling", "type", "linear"),
        ("rope_scaling", "mscale", 1.0),
    ],
)
def test_sections_are_checked(section: str, field: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=field):
        parse(published(**{section: {**published()[section], field: value}}))


def test_a_rank_keeps_entries_in_blocks_and_the_rest_in_rings() -> None:
    settings = MemorySettings(backend="cuda", slots=1, drafts=True)
    plan = plan_memory(published(), settings, 4)
    # A block holds a whole group of 128: 32 entries and keys of each of 21 layers, one of 20 more.
    assert plan.limits.block_tokens == 128
    assert plan.token_bytes == 2 * (21 * (512 + 128) // 4 + 20 * 512 // 128)
    # Windows of 128 rows and 32 more in bf16; of open groups [values | gates] in float32: two
    # groups of four, less one token, for entries and for keys, one of 128.
    windows = 46 * 160 * 512 * 2
    tokens = 21 * (7 + 32) * (4 * 512 + 4 * 128) + 20 * (127 + 32) * 2 * 512
    assert plan.request_bytes == windows + 4 * tokens
    without = plan_memory(published(), MemorySettings(backend="cuda", slots=1), 4)
    assert plan.request_bytes - without.request_bytes == 3 * 160 * 512 * 2
    # Experts: 43 layers and 3 stages of 256, codes of half a byte and a scale of one per 32.
    experts = 46 * 256 * 3 * 4096 * 2048 // 4 * 17 // 32
    items = {item.name: item.bytes for item in plan.items}
    assert experts <= items["weights: experts"] < experts * 1.005


@pytest.mark.parametrize(
    ("world", "fields", "message"),
    [
        (3, {}, r"3 does not divide config.json's num_attention_heads \(64\)"),
        (16, {}, r"16 does not divide config.json's o_groups \(8\)"),
        (4, {"moe_intermediate_size": 2080}, "cuts .* into 520 columns"),
    ],
)
def test_worlds_that_do_not_divide_are_refused(world: int, fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_memory(published(**fields), MemorySettings(), world)


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    DeepseekV4Model(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()
    assert list(binding.ignored) == []


@pytest.mark.parametrize(
    "name",
    [
        "layers.1.ffn.gate.tid2eid",
        "layers.3.attn.indexer.compressor.wgate.weight",
        "hc_head_fn",
        "mtp.2.confidence_head.proj.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    fixture = fixture_directory(NAME)
    bind(fixture)
    bind(fixture, drafts=True)
    rewrite(
        fixture / "model.safetensors",
        tmp_path / "model.safetensors",
        lambda tensors: tensors.pop(name),
    )
    (tmp_path / "config.json").write_text((fixture / "config.json").read_text())
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(tmp_path)


def test_tables_name_experts_that_there_are(tmp_path: Path) -> None:
    table = np.array([[0, 3], [7, 1]], np.int64)
    checkpoint = write_checkpoint(tmp_path, {"gate.tid2eid": ("I64", table)})
    backend = CpuBackend(1, 1)

    def read(limit: int):
        source = LoadedWeights(Binding(checkpoint), backend)
        return source.integers("router", "gate.tid2eid", (2, 2), limit)

    np.testing.assert_array_equal(read(8).array, table)
    with pytest.raises(CheckpointError, match=r"gate.tid2eid has values .* not within 0..6"):
        read(7)
