"""The Hugging Face cache on disk: blobs by their hash, snapshots of links to them, named revisions.

models--ORG--NAME/blobs/HASH             SHA-256 of a large file, git's SHA-1 of a small one
models--ORG--NAME/snapshots/COMMIT/FILE  a link to its blob
models--ORG--NAME/refs/REVISION          the commit that the revision names
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MAIN = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][\w.+/-]{0,254}")


def is_revision(text: str) -> bool:
    """Whether `text` can be the name of a branch, a tag or a commit."""
    return _REVISION.fullmatch(text) is not None and ".." not in text


def repository(model: str, hub: Path) -> Path:
    """Where the cache `hub` keeps `model` (ORG/NAME)."""
    return hub / f"models--{model.replace('/', '--')}"


def snapshot(model: str, hub: Path, commit: str) -> Path:
    return repository(model, hub) / "snapshots" / commit


def blob(model: str, hub: Path, name: str) -> Path:
    return repository(model, hub) / "blobs" / name


def named_commit(model: str, hub: Path, revision: str = MAIN) -> str:
    """The commit that the cache knows as `revision`; empty where it knows none."""
    try:
        return (repository(model, hub) / "refs" / revision).read_text("utf-8").strip()
    except OSError:
        return ""


def name_commit(model: str, hub: Path, commit: str, revision: str = MAIN) -> None:
    """From here on `revision` is `commit`: whole or not at all. Raises OSError."""
    reference = repository(model, hub) / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    fresh = reference.with_name(f"{reference.name}.{os.getpid()}.new")
    fresh.write_text(commit)
    fresh.replace(reference)


def blob_name(file: Path) -> str:
    """The blob that a snapshot's file links to; empty where the file is no link."""
    return file.readlink().name if file.is_symlink() else ""


def link_to_blob(folder: Path, name: str, blob_name: str) -> None:
    """`folder`/`name` links to that blob, whatever was there before. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{name}.{os.getpid()}.new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(f"../../blobs/{blob_name}")
    fresh.replace(folder / name)
