"""DeepSeek-V4.1-Flash: what its config.json may say, and what follows from it."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import msgspec
import numpy as np
import pytest
from reference_fixtures import fixture_directory

from dgpp.errors import CheckpointError
from dgpp.models.deepseek_v41.config import parse
from dgpp.models.deepseek_v41.engram_tables import multipliers, primes, token_classes

TOKENIZERS = Path(__file__).parents[4] / "shared" / "assets" / "tokenizers"


@pytest.fixture(scope="module")
def fixture() -> Path:
    return fixture_directory("deepseek-v4.1-flash-mxfp4-fp8")


def small(fixture: Path, **text: object) -> dict[str, object]:
    config = json.loads((fixture / "config.json").read_text())
    config["text_config"] |= text
    return config


RELEASE = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "max_position_embeddings": 1 << 20,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "sliding_window": 128,
    "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_vocab_size": 16000000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_compressed_vocab_size": 99092,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
}
"""The sizes of the released model."""


def test_whose_rows_a_layer_reads(fixture: Path) -> None:
    config = parse(small(fixture))
    assert [config.kv_source(layer) for layer in range(2, 8)] == [2, 3, 4, 4, 4, 4]
    assert parse(small(fixture, **RELEASE)).kv_source(39) == 20


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scoring_func", "sigmoid", "scoring_func is 'sigmoid'"),
        ("compress_ratios", [0, 0, 2, 2, 1, 1, 1, 4, 0, 0, 0], "compress_ratios is not 8 of"),
        ("compress_ratios", [0, 0, 2, 2, 1, 1, 1, 2, 0, 0, 0], "compress_ratios of layer 7"),
        ("kv_source_layer_ids", [3, 4], "index_source_layer_ids has|kv_source_layer_ids has none"),
        ("kv_source_layer_ids", [2, 3, 4, 5], "is not in index_source_layer_ids"),
        ("index_source_layer_ids", [1, 2, 3, 4, 6], "has 1, which does not compress"),
        ("index_source_layer_ids", [4, 2, 3], "index_source_layer_ids is not ascending"),
        ("candidate_source_layer_id", 5, "candidate_source_layer_id is no index source"),
        ("engram_layer_ids", [1, 4], "engram_layer_ids has layers of the decoder half"),
        ("engram_num_embeddings", [2914], "engram_num_embeddings is not one for each"),
        ("dspark_target_layer_ids", [3, 6, 7], "dspark_target_layer_ids is"),
        ("dspark_num_experts_per_tok", 9, "dspark_num_experts_per_tok is not within"),
        ("rope_scaling", {"factor": 16}, "original_max_position_embeddings"),
        ("head_dim", 40, "head_dim is 40, not a multiple of 32"),
        ("o_groups", 3, "num_attention_heads is not a multiple of o_groups"),
        ("router_bias", 1, "router_bias is not known for deepseek_v41"),
    ],
)
def test_what_is_not_known_is_named(fixture: Path, field: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(small(fixture, **{field: value}))


def test_another_quantisation_is_refused(fixture: Path) -> None:
    config = small(fixture)
    config["quantization_config"] = config["quantization_config"] | {
        "weight_block_size": [128, 128]
    }
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


def test_hashes_of_the_release(fixture: Path) -> None:
    config = parse(small(fixture, **RELEASE))
    assert [sum(part) for part in primes(config)] == [384006168, 384016682]
    assert multipliers(config, 1)[0] == 76632096046245
    assert multipliers(config, 14)[3] == 82619226485591


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


def test_classes_of_the_released_tokenizer(fixture: Path, tmp_path: Path) -> None:
    packed = TOKENIZERS / "deepseek-v4" / "tokenizer.json.xz"
    if not packed.is_file():
        pytest.skip("the tokenizer is not in ../shared/assets/tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    config = msgspec.structs.replace(parse(small(fixture)), vocab_size=129280,
                                     engram_compressed_vocab_size=99092)  # fmt: skip
    classes = token_classes(config, path)
    assert (len(classes), classes.max()) == (129280, 99091)
