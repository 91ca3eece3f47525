"""DeepSeek-V4.1-Flash: what its config.json may say, what it binds, what a rank holds."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from model_fixtures import release, rewrite
from reference_fixtures import fixture_directory

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.deepseek.config import exact
from dgpp.models.deepseek_v41.config import parse
from dgpp.models.deepseek_v41.engram import engram_shapes
from dgpp.models.deepseek_v41.engram_tables import multipliers, primes, token_classes
from dgpp.models.deepseek_v41.model import DeepseekV41Model
from dgpp.models.inspection import inspect_checkpoint
from dgpp.models.plan import MemorySettings, plan_memory
from dgpp.models.sources import CheckedWeights

NAME = "deepseek-v4.1-flash-mxfp4-fp8"
TOKENIZERS = Path(__file__).parents[4] / "shared" / "assets" / "tokenizers"


@pytest.fixture(scope="module")
def fixture() -> Path:
    return fixture_directory(NAME)


def small(fixture: Path, **text: object) -> dict[str, object]:
    config = json.loads((fixture / "config.json").read_text())
    config["text_config"] |= text
    return config


def published(**text: object) -> dict[str, object]:
    config = release(NAME)
    config["text_config"] |= text
    return config


def test_whose_entries_a_layer_reads() -> None:
    config = parse(published())
    found = [config.kv_source(layer) for layer in (2, 7, 8, 13, 14, 19, 20, 39)]
    assert found == [2, 2, 8, 8, 14, 14, 20, 20]
    assert config.decoder == 20
    assert config.rounded
    assert not exact(config).rounded


RATIOS = [0] * 2 + [2] * 18 + [1] * 20


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scoring_func", "sigmoid", "scoring_func is 'sigmoid'"),
        ("n_shared_experts", 2, "n_shared_experts is 2"),
        ("compress_ratios", [*RATIOS, 0, 0], "compress_ratios is not 40 of"),
        ("compress_ratios", [*RATIOS[:-1], 4, 0, 0, 0], "compress_ratios is not 40 of"),
        ("compress_ratios", [*RATIOS[:-1], 2, 0, 0, 0], "compress_ratios of layer 39"),
        ("kv_source_layer_ids", [8, 14, 20], "kv_source_layer_ids has none for layer 2"),
        ("kv_source_layer_ids", [2, 8, 14, 20, 21], "is not in index_source_layer_ids"),
        ("index_source_layer_ids", [1, 2, 8, 14, 20], "has 1, which does not compress"),
        ("index_source_layer_ids", [4, 2, 8], "index_source_layer_ids is not ascending"),
        ("candidate_source_layer_id", 21, "candidate_source_layer_id is no index source"),
        ("candidate_source_layer_id", 14, "or keys of another layer follow it"),
        ("engram_layer_ids", [1, 20], "engram_layer_ids has layers of the decoder half"),
        ("engram_num_embeddings", [2914], "engram_num_embeddings is not one for each"),
        ("engram_max_ngram_size", 1, "engram_max_ngram_size is not within 2..16"),
        ("engram_pad_token_id", 129280, "engram_pad_token_id is 129280, no token"),
        ("dspark_target_layer_ids", [20, 38, 39], "not ascending layers of 21 to 39"),
        ("dspark_noise_token_id", -1, "dspark_noise_token_id is -1, no token"),
        ("dspark_num_experts_per_tok", 129, "dspark_num_experts_per_tok is 129, not within"),
        ("rope_scaling", {"factor": 16}, "original_max_position_embeddings"),
        ("head_dim", 520, "head_dim is 520, not a multiple of 32"),
        ("o_groups", 6, "num_attention_heads is not a multiple of o_groups"),
        ("router_bias", 1, "router_bias is not known for deepseek_v41"),
    ],
)
def test_what_is_not_known_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(published(**{field: value}))


def test_another_quantisation_is_refused() -> None:
    config = published()
    blocks = {"weight_block_size": [128, 128]}
    config["quantization_config"] = config["quantization_config"] | blocks
    with pytest.raises(CheckpointError, match=r"weight_block_size is \[128, 128\], not \[32, 32\]"):
        parse(config)
    del config["quantization_config"]
    with pytest.raises(CheckpointError, match="quantization_config is missing"):
        parse(config)


def test_hashes_are_those_of_the_reference(fixture: Path) -> None:
    config, expected = parse(small(fixture)), np.load(fixture / "expected.npz")
    np.testing.assert_array_equal(primes(config), expected["engram_primes"].reshape(2, -1))
    wanted = [[int(value) for value in row] for row in expected["engram_multipliers"]]
    assert [list(multipliers(config, layer)) for layer in config.engram_layer_ids] == wanted
    classes = token_classes(config, fixture / "tokenizer.json")
    np.testing.assert_array_equal(classes, expected["token_map"])


def test_hashes_of_the_release() -> None:
    config = parse(published())
    assert [sum(part) for part in primes(config)] == [384006168, 384016682]
    assert multipliers(config, 1)[0] == 76632096046245
    assert multipliers(config, 14)[3] == 82619226485591
    shapes = engram_shapes(config, np.arange(129280, dtype=np.int32) % 99092)
    assert {layer: (shape.how.pad, shape.how.reset) for layer, shape in shapes.items()} == {
        1: (2, 129264),
        14: (2, 129264),
    }


def test_another_number_of_rows_or_classes_is_refused(fixture: Path) -> None:
    config = parse(small(fixture, engram_num_embeddings=[2914, 3745]))
    with pytest.raises(
        CheckpointError, match="engram_num_embeddings is 3745, the primes make 3746"
    ):
        primes(config)
    config = parse(small(fixture, engram_compressed_vocab_size=406))
    with pytest.raises(
        CheckpointError, match=r"engram_compressed_vocab_size is 406, .* 407 classes"
    ):
        token_classes(config, fixture / "tokenizer.json")
    with pytest.raises(CheckpointError, match="No such file"):
        token_classes(config, fixture / "absent.json")


def test_classes_of_the_released_tokenizer(tmp_path: Path) -> None:
    packed = TOKENIZERS / "deepseek-v4" / "tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip("the tokenizer is not in ../shared/assets/tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    classes = token_classes(parse(published()), path)
    assert (len(classes), classes.max()) == (129280, 99091)


def test_a_rank_holds_what_the_release_takes() -> None:
    settings = MemorySettings(backend="cuda", slots=1, drafts=True, ngram_table="mmap")
    plan = plan_memory(published(), settings, 4)
    # Three layers keep an entry and a key per two tokens, one per token, in bf16.
    assert plan.token_bytes == (3 * (512 + 128) // 2 + 512 + 128) * 2
    # Windows of 128 rows and 32 more in bf16; in float32 an open pair and 32 tokens more of
    # [value | gate] in three layers, and three tokens and 32 more, a row of 32 values each, for
    # each table.
    windows = 43 * 160 * 512 * 2
    assert plan.request_bytes == windows + 3 * 33 * 2 * 512 * 4 + 2 * 35 * 32 * 4
    # Half a byte and a scale per 32 values of 40 × 384 experts and 3 × 128 of draft stages.
    experts = (40 * 384 + 3 * 128) * 3 * 5120 * 2304 // 4 * 17 // 32
    items = {item.name: item.bytes for item in plan.items}
    assert experts <= items["weights: experts"] < experts * 1.005
    tables = 384006168 + 384016682
    assert "n-gram table" not in "".join(items)
    assert any(f"{tables * 264 / 2**30:.1f} GiB of tables" in note for note in plan.notes)
    held = plan_memory(published(), msgspec.structs.replace(settings, ngram_table="resident"), 4)
    most = max(sum(part[:6]) for part in primes(parse(published())))
    found = {item.name: item.bytes for item in held.items}["weights: n-gram table"]
    assert tables * 264 / 4 <= found + 264 * 4096
    assert found <= 2 * most * 264


def test_bounded_prefill_is_told() -> None:
    plan = plan_memory(published(), MemorySettings(prefill="bounded"), 4)
    assert plan.limits.reread == 128
    assert (
        "prefill bounded: later layers run the last 128 tokens of a prompt alone" in plan.notes[-1]
    )
    assert plan_memory(published(), MemorySettings(), 4).limits.reread == 1
    other = plan_memory(release("glm-4.7"), MemorySettings(prefill="bounded"), 4)
    assert other.limits.reread == 1
    assert "prefill bounded: every layer of this model reads whole prompts" in other.notes[-1]


@pytest.mark.parametrize(
    ("world", "fields", "message"),
    [
        (3, {}, r"3 does not divide config.json's num_attention_heads \(64\)"),
        (16, {}, r"16 does not divide config.json's o_groups \(8\)"),
        (4, {"moe_intermediate_size": 2240}, "cuts .* into 560 columns"),
    ],
)
def test_worlds_that_do_not_divide_are_refused(world: int, fields, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_memory(published(**fields), MemorySettings(), world)


def bind(directory: Path, *, drafts: bool = False) -> None:
    checkpoint = Checkpoint(directory)
    binding = Binding(checkpoint)
    DeepseekV41Model(parse(checkpoint.config), CheckedWeights(binding), drafts=drafts)
    binding.finish()
    assert all(name.endswith(".ffn.gate.bias_vl") for name in binding.ignored)


def test_every_tensor_is_bound(fixture: Path) -> None:
    bind(fixture)
    bind(fixture, drafts=True)


@pytest.mark.parametrize(
    ("shard", "name"),
    [
        (1, "layers.0.attn.wo_a.scale"),
        (1, "layers.1.engram.embed.scale"),
        (1, "layers.1.engram.embed.weight"),
        (1, "layers.1.engram.k_weight"),
        (1, "layers.2.attn.compressor.wgate.weight"),
        (1, "layers.4.attn.indexer.wk.weight"),
        (2, "layers.6.attn.indexer.weights_proj.weight"),
        (2, "mtp.0.main_norm.weight"),
        (2, "mtp.2.markov_head.embed.weight"),
    ],
)
def test_a_missing_tensor_is_named(fixture: Path, tmp_path: Path, shard: int, name: str) -> None:
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        if number == shard:
            rewrite(fixture / file, tmp_path / file, lambda tensors: tensors.pop(name))
        else:
            shutil.copy(fixture / file, tmp_path / file)
    (tmp_path / "config.json").write_text((fixture / "config.json").read_text())
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        bind(tmp_path)
    # Whoever reads the checkpoint says the same of it.
    with pytest.raises(CheckpointError, match=f"tensor {name} is missing"):
        inspect_checkpoint(Checkpoint(tmp_path))


def test_an_inspection_accounts_for_every_tensor(fixture: Path) -> None:
    found = inspect_checkpoint(Checkpoint(fixture))
    groups = [*found.formats, found.vectors, found.draft, *found.ignored]
    assert sum(group.tensors for group in groups) == found.tensors
    assert sum(group.bytes for group in groups) == found.bytes
    assert {group.name: group.parts for group in found.formats}["MXFP8, looked up"] == 2
