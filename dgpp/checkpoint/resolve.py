"""From the name a user gives to the directory that holds the checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dgpp.checkpoint.hashes import cache_directory
from dgpp.checkpoint.hub_cache import MAIN, named_commit, repository, snapshot
from dgpp.errors import CheckpointError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")


def models_directory(environ: Mapping[str, str]) -> Path:
    """Where our own downloads live: DGPP_MODELS_DIR, else models in the cache directory."""
    override = environ.get("DGPP_MODELS_DIR")
    return Path(override) if override else cache_directory(environ) / "models"


def hub_directory(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    if environ.get("HF_HUB_CACHE"):
        return Path(environ["HF_HUB_CACHE"]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    return Path.home() / ".cache" / "huggingface" / "hub"


def _hub_snapshot(model: str, hub: Path) -> Path | None:
    """The snapshot that refs/main of `model` names, None when the cache does not know the model."""
    root = repository(model, hub)
    if not root.is_dir():
        return None
    commit = named_commit(model, hub)
    if not commit:
        message = (
            f"model {model}: {root / 'refs' / MAIN} is missing, so no snapshot is chosen; "
            f"`dgpp fetch {model}` ends a download that was interrupted"
        )
        raise CheckpointError(message)
    folder = snapshot(model, hub, commit)
    if not folder.is_dir():
        message = f"model {model}: refs/main names {commit}, which is not in {folder.parent}"
        raise CheckpointError(message)
    return folder


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
    found = _hub_snapshot(model, hub)
    if found is None:
        message = f"model {model} is neither in {hub} nor in {own.parent.parent}"
        raise CheckpointError(message)
    return found
