"""The token ids that drafts are limited to: one list in a NumPy file."""

from __future__ import annotations

from pathlib import Path

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
