"""From the name a user gives to the directory that holds the checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dgpp.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")


def models_directory(environ: Mapping[str, str]) -> Path:
    """Where our own downloads live: DGPP_MODELS_DIR, else ~/.cache/dgpp/models."""
    override = environ.get("DGPP_MODELS_DIR")
    if override:
        return Path(override)
    cache = environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "dgpp" / "models"


def hub_directory(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"])
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]) / "hub"
    return Path.home() / ".cache" / "huggingface" / "hub"


def _hub_snapshot(model: str, hub: Path) -> Path | None:
    """The snapshot that refs/main of `model` names, None when the cache does not know the model."""
    root = hub / f"models--{model.replace('/', '--')}"
    if not root.is_dir():
        return None
    reference = root / "refs" / "main"
    if not reference.is_file():
        message = f"model {model}: {reference} is missing, so no snapshot is chosen"
        raise CheckpointError(message)
    snapshot = root / "snapshots" / reference.read_text("utf-8").strip()
    if not snapshot.is_dir():
        message = (
            f"model {model}: refs/main names {snapshot.name}, which is not in {snapshot.parent}"
        )
        raise CheckpointError(message)
    return snapshot


def resolve_model(model: str, environ: Mapping[str, str] | None = None) -> Path:
    """The checkpoint directory of `model`: a directory, or ORG/NAME in one of the caches.

    Raises CheckpointError naming the places looked at.
    """
    environ = os.environ if environ is None else environ
    directory = Path(model).expanduser()
    if directory.is_dir():
        return directory
    if not HUB_NAME.match(model):
        message = f"model: {model!r} is neither a directory nor a name of the form ORG/NAME"
        raise CheckpointError(message)
    own = models_directory(environ) / model
    if own.is_dir():
        return own
    hub = hub_directory(environ)
    snapshot = _hub_snapshot(model, hub)
    if snapshot is None:
        message = f"model {model} is neither in {hub} nor in {own.parent.parent}"
        raise CheckpointError(message)
    return snapshot
