"""What the release derives from sizes alone: hash multipliers, prime table sizes, token classes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, normalizers

from dgpp.errors import CheckpointError
from dgpp.models.config_fields import refuse
from dgpp.models.deepseek_v41.config import DeepseekV41Config
from dgpp.models.layers.ngram import primes_from

SEED = 10007
"""A layer's multipliers come from a generator seeded with this times the layer."""
SPACE = "\ue000"
"""Stands in for a token that is a single space while the others are stripped."""
NO_TEXT = "\ufffd"


def multipliers(config: DeepseekV41Config, layer: int) -> tuple[int, ...]:
    """Odd numbers, one per token of the longest n-gram; times a class they stay below 2^63."""
    most = np.iinfo(np.int64).max // config.engram_compressed_vocab_size // 2
    drawn = np.random.default_rng(SEED * layer).integers(
        0, max(1, most), config.engram_max_ngram_size, np.int64
    )
    return tuple(int(value) for value in 2 * drawn + 1)


def primes(config: DeepseekV41Config) -> list[tuple[int, ...]]:
    """Per Engram layer the rows of each head's part of its table, heads of 2-grams first: primes
    from engram_vocab_size on, no one taken twice.

    Raises CheckpointError where they do not add up to engram_num_embeddings.
    """
    each = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    wanted = each * len(config.engram_layer_ids)
    found = list(islice(primes_from(config.engram_vocab_size), wanted))
    parts = [tuple(found[at : at + each]) for at in range(0, len(found), each)]
    for part, said in zip(parts, config.engram_num_embeddings, strict=True):
        if sum(part) != said:
            raise refuse("engram_num_embeddings", f"is {said}, the primes make {sum(part)} rows")
    return parts


def _normaliser() -> normalizers.Normalizer:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex("^ $"), SPACE),
            normalizers.Strip(),
            normalizers.Replace(SPACE, " "),
        ]
    )


def token_classes(config: DeepseekV41Config, path: Path) -> npt.NDArray[np.int32]:
    """int32 [vocab]: tokens whose text is the same but for case, accents and width of spaces have
    one class; classes are numbered by the first token of each. A token whose bytes are no text of
    their own stands for itself.

    Raises CheckpointError where `path`, a tokenizer.json, has other classes than config.json says.
    """
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises Exception itself.
        raise CheckpointError(f"{path}: {error}") from error
    vocab = config.vocab_size
    texts = tokenizer.decode_batch([[token] for token in range(vocab)], skip_special_tokens=False)
    normaliser, numbers = _normaliser(), dict[str, int]()
    classes = np.empty(vocab, np.int32)
    for token, text in enumerate(texts):
        key = normaliser.normalize_str(text) or text
        if NO_TEXT in text:
            key = tokenizer.id_to_token(token) or ""
        classes[token] = numbers.setdefault(key, len(numbers))
    if len(numbers) != config.engram_compressed_vocab_size:
        said = f"is {config.engram_compressed_vocab_size}, {path} makes {len(numbers)} classes"
        raise refuse("engram_compressed_vocab_size", said)
    return classes
