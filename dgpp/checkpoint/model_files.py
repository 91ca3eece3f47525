"""Where the files of a served model are: its directory, its config.json, its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dgpp.checkpoint.resolve import resolve_model
from dgpp.errors import CheckpointError


class ModelFiles(NamedTuple):
    """`directory` holds whatever else there is; `text` says whether a tokenizer is among it."""

    directory: Path
    config: Path
    text: bool


def find_model(model: str, *, weights: bool = True) -> ModelFiles:
    """The files of `model`: a directory, ORG/NAME in one of the caches, or the config file alone.

    Without `weights`, `model` may be a JSON file, and a tokenizer may be absent. A file under any
    name but config.json stands for itself: what lies beside it belongs to others.
    Raises CheckpointError.
    """
    path = Path(model).expanduser()
    if not path.is_file():
        directory = resolve_model(model)
    elif weights:
        raise CheckpointError(f"model: {model} is a file; a file alone needs engine.load dummy")
    elif path.name != "config.json":
        return ModelFiles(path.parent, path, text=False)
    else:
        directory = path.parent
    text = weights or (directory / "tokenizer.json").is_file()
    return ModelFiles(directory, directory / "config.json", text)
