"""The tokenizer tables of a GGUF file as `tokenizer.json` and `tokenizer_config.json`."""

from __future__ import annotations

_CONTROL = 3  # GGUF's token type of markers that stand outside the text


def tokenizer_json(tokens: list[str], kinds: list[int], merges: list[str]) -> dict[str, object]:
    """A byte-level BPE tokenizer whose digits stand alone, from its tokens in id order,
    their GGUF types and its merges ("left right", most frequent first)."""
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == _CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                byte_level | {"add_prefix_space": False},
            ],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def tokenizer_config(
    specials: dict[str, str], chat_template: str, max_length: int
) -> dict[str, object]:
    """`specials` maps `bos_token`, `eos_token`, … to their texts; `max_length` is in tokens."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        **specials,
        "chat_template": chat_template,
    }
