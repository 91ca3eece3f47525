"""A llama-shaped GGUF file written as a Hugging Face `glm4_moe` checkpoint, all layers dense.

Without q/k norms, without biases, with rotary over the whole head and with every layer before
`first_k_dense_replace`, GLM-4.7's forward pass is llama's. So a small llama model can run, and
talk, in the code of a large family.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize

from dgpp.checkpoint.demo_source import Progress
from dgpp.checkpoint.demo_tokenizer import tokenizer_config, tokenizer_json
from dgpp.errors import CheckpointError

Array: TypeAlias = npt.NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


class LlamaGguf:
    """The metadata and tensors of one GGUF file of architecture `llama`."""

    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if self.text("general.architecture") != "llama":
            raise CheckpointError(f"{path.name}: general.architecture is not llama")
        self.layers = self.count("llama.block_count")
        self.heads = self.count("llama.attention.head_count")
        self.kv_heads = self.count("llama.attention.head_count_kv")

    def field(self, key: str) -> object:
        """The value of metadata `key`. Raises CheckpointError when the file has none."""
        if key not in self._reader.fields:
            raise CheckpointError(f"GGUF metadata {key} is missing")
        value: object = self._reader.fields[key].contents()
        return value

    def count(self, key: str) -> int:
        return msgspec.convert(self.field(key), int)

    def number(self, key: str) -> float:
        """A float32 value as the shortest decimal that still names it."""
        return float(str(np.float32(msgspec.convert(self.field(key), float))))

    def text(self, key: str) -> str:
        return msgspec.convert(self.field(key), str)

    def texts(self, key: str) -> list[str]:
        return msgspec.convert(self.field(key), list[str])

    def counts(self, key: str) -> list[int]:
        return msgspec.convert(self.field(key), list[int])

    def names(self) -> set[str]:
        return set(self._tensors)

    def shape(self, name: str) -> Shape:
        """Rows first, as in a safetensors file. Raises CheckpointError when there is none."""
        if name not in self._tensors:
            raise CheckpointError(f"GGUF tensor {name} is missing")
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def tensor(self, name: str) -> Array:
        """The dequantised values as float32, in `shape(name)`."""
        shape = self.shape(name)
        entry = self._tensors[name]
        return np.asarray(dequantize(entry.data, entry.tensor_type), np.float32).reshape(shape)


def convert(gguf: Path, out: Path, progress: Progress) -> None:
    """Write weights, configuration and tokenizer of `gguf` into the existing folder `out`.

    `progress("convert", done, total)` counts bytes of weights.
    Raises CheckpointError when metadata or a tensor is missing, unexpected or not finite.
    """
    source = LlamaGguf(gguf)
    _write_json(out / "config.json", _config(source))
    _write_json(out / "generation_config.json", _generation_config(source))
    tokens, merges = source.texts("tokenizer.ggml.tokens"), source.texts("tokenizer.ggml.merges")
    kinds = source.counts("tokenizer.ggml.token_type")
    _write_json(out / "tokenizer.json", tokenizer_json(tokens, kinds, merges))
    ids = {f"{name}_token": source.count(key) for name, key in _SPECIAL_IDS.items()}
    specials = {name: tokens[index] for name, index in ids.items()}
    template = source.text("tokenizer.chat_template")
    length = source.count("llama.context_length")
    _write_json(out / "tokenizer_config.json", tokenizer_config(specials, template, length))
    _write_weights(source, out / "model.safetensors", progress)


def interleaved_to_halves(weight: Array, heads: int) -> Array:
    """Reorder the rows [heads * D, ...] of a query or key projection for half-split rotary.

    GGUF keeps the pair (2 i, 2 i + 1) of a head side by side; here the pair is (i, i + D / 2).
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def to_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """The bit patterns of `values` rounded to bfloat16, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


_SPECIAL_IDS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
}


def _config(source: LlamaGguf) -> dict[str, object]:
    hidden = source.count("llama.embedding_length")
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "dtype": "bfloat16",
        "vocab_size": source.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": source.count("llama.feed_forward_length"),
        "num_hidden_layers": source.layers,
        "num_attention_heads": source.heads,
        "num_key_value_heads": source.kv_heads,
        "head_dim": hidden // source.heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_qk_norm": False,
        "partial_rotary_factor": 1.0,
        "rope_theta": source.number("llama.rope.freq_base"),
        "rope_scaling": None,
        "max_position_embeddings": source.count("llama.context_length"),
        "rms_norm_eps": source.number("llama.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": True,
        "eos_token_id": source.count("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.count("tokenizer.ggml.padding_token_id"),
        # No layer routes, but the family's configuration names its experts all the same.
        "first_k_dense_replace": source.layers,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "num_nextn_predict_layers": 0,
    }


def _generation_config(source: LlamaGguf) -> dict[str, object]:
    # Temperature and top_p are what the model's publisher recommends for chatting with it.
    return {
        "bos_token_id": source.count("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.count("tokenizer.ggml.eos_token_id"),
        "pad_token_id": source.count("tokenizer.ggml.padding_token_id"),
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
    }


def _tensor_names(source: LlamaGguf) -> dict[str, str]:
    """Checkpoint name → GGUF name, every tensor of the file exactly once."""
    names = {f"{ours}.weight": f"{theirs}.weight" for theirs, ours in _OUTER_NAMES.items()}
    for layer in range(source.layers):
        for theirs, ours in _LAYER_NAMES.items():
            names[f"model.layers.{layer}.{ours}.weight"] = f"blk.{layer}.{theirs}.weight"
    extra = source.names() - set(names.values())
    if extra:
        raise CheckpointError(f"GGUF tensor {min(extra)} has no place in the checkpoint")
    return names


def _checkpoint_tensor(source: LlamaGguf, name: str) -> Array:
    values = source.tensor(name)
    if not np.isfinite(values).all():
        raise CheckpointError(f"GGUF tensor {name} holds values that are not finite")
    if name.endswith(".attn_q.weight"):
        return interleaved_to_halves(values, source.heads)
    if name.endswith(".attn_k.weight"):
        return interleaved_to_halves(values, source.kv_heads)
    return values


def _write_weights(source: LlamaGguf, path: Path, progress: Progress) -> None:
    """One safetensors file, tensor by tensor: 8 bytes of header length, JSON header, data."""
    names = _tensor_names(source)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for ours, theirs in names.items():
        shape = source.shape(theirs)
        begin, end = end, end + 2 * int(np.prod(shape))
        header[ours] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    written = 0
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for theirs in names.values():
            written += file.write(to_bf16(_checkpoint_tensor(source, theirs)).tobytes())
            progress("convert", written, end)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
