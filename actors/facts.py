"""What a rank found itself to be: the ranks of a world compare it before anything is loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from actors.boot import Boot
from dgpp.config.resolve import digest
from dgpp.errors import CheckpointError

_FILES = ("tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")


def facts(boot: Boot) -> dict[str, str]:
    """By name, and short enough to be shown where ranks differ. Raises CheckpointError."""
    found = {
        "version": boot.version,
        "settings": digest(boot.settings),
        "backend": boot.backend,
        "config.json": _sha(Path(boot.config_path)),
    }
    for name, value in msgspec.structs.asdict(boot.limits).items():
        found[f"limits.{name}"] = str(value)
    if boot.settings.engine.draft_vocab:
        found["draft_vocab"] = _sha(Path(boot.settings.engine.draft_vocab).expanduser())
    for name in _FILES:
        file = Path(boot.model_directory) / name
        if file.is_file():
            found[name] = _sha(file)
    return found


def _sha(file: Path) -> str:
    """16 hex digits over the file's bytes; "none" where there is no such file."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        return "none"
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
