"""The conversion against hand-written numbers and the rotary identity it must preserve."""

from __future__ import annotations

import json
import struct
from fractions import Fraction

import numpy as np
import pytest
from demo_tiny import HEADS, HIDDEN, KV_HEADS, LAYERS, TOKENS, tiny_tensors, write_gguf
from hypothesis import given
from hypothesis import strategies as st
from safetensors import deserialize
from tokenizers import Tokenizer

from dgpp.checkpoint.demo import silent
from dgpp.checkpoint.demo_convert import convert, interleaved_to_halves, to_bf16
from dgpp.errors import CheckpointError

HEAD = HIDDEN // HEADS


@pytest.fixture
def checkpoint(tiny_gguf, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    convert(tiny_gguf, out, silent)
    return out


def read(checkpoint):
    """Name → float32 values, read by the safetensors library."""
    tensors = {}
    for name, entry in deserialize((checkpoint / "model.safetensors").read_bytes()):
        assert entry["dtype"] == "BF16"
        bits = np.frombuffer(bytes(entry["data"]), np.uint16).astype(np.uint32) << 16
        tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


def value(bits: int) -> Fraction:
    return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])


@given(
    st.floats(
        width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**126), max_value=2.0**126
    )
)
def test_bf16_is_the_nearest_and_even_on_ties(number):
    exact = Fraction(number)
    below = struct.unpack("<I", struct.pack("<f", number))[0] & 0xFFFF0000
    ends = [below, below + 0x10000]
    distances = [abs(value(end) - exact) for end in ends]
    if distances[0] == distances[1]:
        expected = next(end for end in ends if not (end >> 16) & 1)
    else:
        expected = ends[distances.index(min(distances))]
    assert int(to_bf16(np.array([number], np.float32))[0]) == expected >> 16


def test_rows_of_one_head_by_hand():
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert interleaved_to_halves(rows, 1).ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert interleaved_to_halves(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def rotated_pairs(vector, position):
    """Interleaved rotary of one head, written out."""
    out = vector.copy()
    for i in range(HEAD // 2):
        angle = position * 10000.0 ** (-2 * i / HEAD)
        a, b = vector[2 * i], vector[2 * i + 1]
        out[2 * i] = a * np.cos(angle) - b * np.sin(angle)
        out[2 * i + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out


def rotated_halves(vector, position):
    """Half-split rotary of one head, written out."""
    out, half = vector.copy(), HEAD // 2
    for i in range(half):
        angle = position * 10000.0 ** (-2 * i / HEAD)
        a, b = vector[i], vector[i + half]
        out[i] = a * np.cos(angle) - b * np.sin(angle)
        out[i + half] = a * np.sin(angle) + b * np.cos(angle)
    return out


def test_scores_are_those_of_the_interleaved_layout():
    rng = np.random.default_rng(3)
    q, k = rng.standard_normal((2, HEAD, HIDDEN)).astype(np.float32)
    x, y = rng.standard_normal((2, HIDDEN))
    theirs = rotated_pairs(q @ x, 7) @ rotated_pairs(k @ y, 4)
    q2, k2 = interleaved_to_halves(q, 1), interleaved_to_halves(k, 1)
    ours = rotated_halves(q2 @ x, 7) @ rotated_halves(k2 @ y, 4)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_every_tensor_has_its_place_and_values(checkpoint):
    found = read(checkpoint)
    source = tiny_tensors()
    assert len(found) == len(source) == 2 + 9 * LAYERS
    expected = {
        "model.embed_tokens.weight": source["token_embd.weight"],
        "model.norm.weight": source["output_norm.weight"],
        "model.layers.1.mlp.down_proj.weight": source["blk.1.ffn_down.weight"],
        "model.layers.0.self_attn.o_proj.weight": source["blk.0.attn_output.weight"],
        "model.layers.1.post_attention_layernorm.weight": source["blk.1.ffn_norm.weight"],
    }
    for name, values in expected.items():
        assert found[name].shape == values.shape
        # Half a step of bfloat16 (8 significant bits) is 2^-9 of the value's power of two.
        assert np.all(np.abs(found[name] - values) <= np.abs(values) * 2.0**-8)
    key = found["model.layers.1.self_attn.k_proj.weight"]
    assert key.shape == (KV_HEADS * HEAD, HIDDEN)
    # Row i + HEAD / 2 of head 1 was row 2 i + 1 of that head.
    theirs = source["blk.1.attn_k.weight"][HEAD + 2 * 1 + 1]
    assert np.allclose(key[HEAD + HEAD // 2 + 1], theirs, rtol=2.0**-8)


def test_config_is_a_dense_glm4_moe(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["model_type"] == "glm4_moe"
    assert config["first_k_dense_replace"] == config["num_hidden_layers"] == LAYERS
    assert config["vocab_size"] == len(TOKENS)
    assert (config["head_dim"], config["partial_rotary_factor"]) == (HEAD, 1.0)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (1e-5, 10000.0)
    assert not config["use_qk_norm"]
    assert not config["attention_bias"]
    assert config["tie_word_embeddings"]


def test_tokenizer_merges_and_keeps_markers_whole(checkpoint):
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids = tokenizer.encode("<|im_start|>ab a<|im_end|>", add_special_tokens=False).ids
    assert ids == [1, TOKENS.index("ab"), TOKENS.index("Ġa"), 2]
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert config["chat_template"] == "{{ messages[0]['content'] }}"


def test_other_architecture_is_refused(tmp_path):
    gguf = write_gguf(tmp_path / "other.gguf", tiny_tensors(), arch="gpt2")
    with pytest.raises(CheckpointError, match="architecture"):
        convert(gguf, tmp_path, silent)


def test_missing_and_extra_tensor_are_named(tmp_path):
    tensors = tiny_tensors()
    less = {name: t for name, t in tensors.items() if name != "blk.1.ffn_up.weight"}
    with pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight is missing"):
        convert(write_gguf(tmp_path / "less.gguf", less), tmp_path, silent)
    more = tensors | {"rope_freqs.weight": np.ones(8, np.float32)}
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight has no place"):
        convert(write_gguf(tmp_path / "more.gguf", more), tmp_path, silent)


def test_value_that_is_not_finite_is_named(tmp_path):
    tensors = tiny_tensors()
    tensors["blk.0.attn_v.weight"][0, 0] = np.nan
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_v\.weight holds"):
        convert(write_gguf(tmp_path / "nan.gguf", tensors), tmp_path, silent)
