"""The token ids that drafts are limited to: one list in a NumPy file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.errors import ConfigError

KEY = "engine.draft_vocab"


def read_draft_vocab(path: Path, vocab_size: int) -> npt.NDArray[np.int32]:
    """int32 [n], ascending: the ids of a one-dimensional int32 or int64 .npy file.

    Raises ConfigError naming the file and what is wrong with it; no pickled array is read.
    """
    try:
        held = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{KEY}: {path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(f"{KEY}: {path}: no .npy file: {error}") from error
    if (
        not isinstance(held, np.ndarray)
        or held.ndim != 1
        or held.dtype.name
        not in (
            "int32",
            "int64",
        )
    ):
        raise ConfigError(f"{KEY}: {path}: not one row of int32 or int64 ids")
    ids = np.unique(held)
    if not ids.size:
        raise ConfigError(f"{KEY}: {path}: no ids")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise ConfigError(f"{KEY}: {path}: id {wrong} is not within 0..{vocab_size - 1}")
    return ids.astype(np.int32)


def choose_draft_vocab(spec: Mapping[str, Any], size: int) -> npt.NDArray[np.int32]:
    """int32 [at most `size`], ascending: the ids of a byte-level BPE tokenizer.json (its content
    `spec`) that are worth drafting: added tokens, single characters of its alphabet, and then what
    merges make, in their order, which is that of their frequency when the tokenizer was trained.

    Raises ConfigError where it is none or `size` does not hold what comes before the merges.
    """
    model = spec.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise ConfigError(f"{KEY}: the tokenizer is no BPE: its model has no merges to go by")
    vocab: dict[str, int] = model["vocab"]
    first = [token["id"] for token in spec.get("added_tokens") or []]
    first += [number for text, number in vocab.items() if len(text) == 1]
    chosen = dict.fromkeys(first)
    if len(chosen) > size:
        raise ConfigError(
            f"{KEY}: {size} ids are fewer than the {len(chosen)} added tokens and characters"
        )
    for merge in model["merges"]:
        if len(chosen) == size:
            break
        pair = merge.split(" ") if isinstance(merge, str) else merge
        made = vocab.get("".join(pair))
        if made is not None:
            chosen[made] = None
    return np.array(sorted(chosen), np.int32)
