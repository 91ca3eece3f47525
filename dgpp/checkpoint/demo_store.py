"""A checkpoint folder that is either whole or absent: lock, staging, manifest, one rename."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dgpp.checkpoint.hashes import sha256_of, to_disk
from dgpp.errors import CheckpointError

MANIFEST = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a checkpoint: its size in bytes and its SHA-256 in hex."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What a finished checkpoint folder holds. Written last, so it stands for the whole."""

    layout: int
    source: dict[str, str]
    files: dict[str, FileEntry]


@dataclass(frozen=True, slots=True)
class Staging:
    """Two folders on the target's file system: `checkpoint` to fill, `scratch` to throw away."""

    checkpoint: Path
    scratch: Path


def is_whole(target: Path, layout: int, *, verify: bool) -> bool:
    """Whether `target` holds every file of a manifest of this `layout`, as `faults` looks."""
    return not faults(target, layout, verify=verify)


def faults(target: Path, layout: int, *, verify: bool) -> list[str]:
    """What keeps `target` from being whole, in words.

    Sizes are compared always, SHA-256 with `verify` (reads every byte).
    """
    try:
        manifest = msgspec.json.decode((target / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return [f"{MANIFEST} is missing"]
    except msgspec.DecodeError:
        return [f"{MANIFEST} is damaged"]
    if manifest.layout != layout or not manifest.files:
        return [f"{MANIFEST} is of another version of dgpp"]
    said = [_fault(target / name, entry, verify) for name, entry in manifest.files.items()]
    return [words for words in said if words]


def _fault(file: Path, entry: FileEntry, verify: bool) -> str:
    try:
        whole = file.stat().st_size == entry.size
        if whole and verify:
            whole = sha256_of(file) == entry.sha256
    except (FileNotFoundError, NotADirectoryError):
        return f"{file.name} is missing"
    return "" if whole else f"{file.name} is damaged"


@contextmanager
def replacing(target: Path) -> Iterator[Staging]:
    """Hold the lock of `target` and give staging folders beside it, gone at the end.

    What a killed predecessor left behind is removed first: holding the lock, it is nobody's.
    """
    parent = target.parent
    prefix = f".{target.name}.staging-"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / f".{target.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for stale in parent.glob(f"{prefix}*"):
                shutil.rmtree(stale, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
                staging = Staging(Path(folder) / "checkpoint", Path(folder) / "scratch")
                staging.checkpoint.mkdir()
                staging.scratch.mkdir()
                yield staging
    except OSError as error:
        raise CheckpointError(f"cannot write {target}: {error}") from error


def publish(checkpoint: Path, target: Path, layout: int, source: Mapping[str, str]) -> None:
    """Make the filled staging folder `checkpoint` the new `target`, durably.

    Runs under `replacing`. A reader sees the old folder, for an instant none, or the new one.
    """
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    manifest = Manifest(
        layout=layout,
        source=dict(source),
        files={path.name: FileEntry(path.stat().st_size, sha256_of(path)) for path in files},
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (checkpoint / MANIFEST).write_bytes(text + b"\n")
    for path in [*files, checkpoint / MANIFEST, checkpoint]:
        to_disk(path)
    if target.exists():
        target.rename(checkpoint.parent / "replaced")
    checkpoint.rename(target)
    to_disk(target.parent)
