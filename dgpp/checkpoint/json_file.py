"""JSON objects from a model's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dgpp.errors import CheckpointError

CONFIG = "config.json"


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`, None where there is no such file; CheckpointError names others."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; CheckpointError where it is missing or something else."""
    found = read_object(path)
    if found is None:
        raise CheckpointError(f"{path}: No such file or directory")
    return found


@contextmanager
def named(path: Path) -> Iterator[None]:
    """A CheckpointError about a model's config.json that is raised inside names the file `path`,
    where that has another name."""
    try:
        yield
    except CheckpointError as error:
        said = str(error)
        if path.name == CONFIG or not said.startswith(f"{CONFIG}: "):
            raise
        raise CheckpointError(f"{path}{said.removeprefix(CONFIG)}") from error
