"""A tiny llama as a GGUF file, in the shape of the demo model's source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 32, 64, 4, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefg", "ab", "Ġ", "Ġa"]
KINDS = [3, 3, 3] + [1] * (len(TOKENS) - 3)


def tiny_tensors() -> dict[str, np.ndarray]:
    """GGUF name → float32 values, rows first."""
    rng = np.random.default_rng(1)
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * head, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * head, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER),
        }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path, tensors: dict[str, np.ndarray], arch: str = "llama") -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(128)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
