"""Which files of a model's repository a served model needs. The rest is never fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_NEEDED = {
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
}
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_WEIGHTS = ".safetensors"
_SECOND_COPY = "consolidated"
"""Some repositories hold all tensors twice; a checkpoint with both would be refused."""


def is_plain_name(name: str) -> bool:
    """Whether `name` is a file name without a folder in it."""
    return _PLAIN.fullmatch(name) is not None


def served_files(names: Iterable[str]) -> list[str]:
    """Those of `names` (paths in the repository) that a served model reads, sorted."""
    return sorted(name for name in names if is_plain_name(name) and _is_read(name))


def _is_read(name: str) -> bool:
    weights = name.endswith(_WEIGHTS) and not name.startswith(_SECOND_COPY)
    return weights or name in _NEEDED


def holds_weights(names: Iterable[str]) -> bool:
    """Whether a model is among `names`: its config.json and a file of weights."""
    names = set(names)
    return CONFIG in names and any(name.endswith(_WEIGHTS) for name in names)
