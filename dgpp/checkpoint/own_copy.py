"""A checkpoint on this machine as others are to get it: its files with sizes and hashes, proved."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from dgpp.checkpoint.hashes import Hashes, git_blob_of
from dgpp.checkpoint.hub_cache import blob_name
from dgpp.checkpoint.json_file import read_json
from dgpp.checkpoint.receive import CopyFile
from dgpp.checkpoint.served_files import CONFIG, INDEX, holds_weights, served_files

WEIGHTS = "*.safetensors"
"""What is missing where no file of weights is there."""
READERS = 4
"""Files hashed at a time: more than a disk needs to be busy."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")

Progress = Callable[[str, int, int], None]


class OwnCopy(msgspec.Struct, frozen=True):
    """`files` of a checkpoint; `missing` are named by it and not there, `damaged` are not what
    their names in the cache say."""

    files: tuple[CopyFile, ...]
    missing: tuple[str, ...]
    damaged: tuple[str, ...]

    @property
    def whole(self) -> bool:
        return not (self.missing or self.damaged)


def take_stock(
    directory: Path, names: Sequence[str], progress: Progress, *, anew: bool = False
) -> OwnCopy:
    """The files of `directory` that a served model reads, and those called `names` beside.

    In the Hugging Face cache a file's blob is named by its hash, which is checked. Hashes that are
    known from before hold, but `anew`. `progress("verify", done, total)` hears of bytes.
    """
    there = served_files(entry.name for entry in directory.iterdir() if entry.is_file())
    total = sum((directory / name).stat().st_size for name in there)
    done = 0
    hashes = Hashes(directory)
    files, damaged = [], []
    with ThreadPoolExecutor(READERS) as pool:
        found = pool.map(lambda name: hashes.sha256(name, anew=anew), there)
        for name, digest in zip(there, found, strict=True):
            path = directory / name
            size, blob = path.stat().st_size, blob_name(path)
            done += size
            progress("verify", done, total)
            files.append(CopyFile(name, size, digest, blob or digest))
            if not _as_named(path, blob, digest):
                damaged.append(name)
    hashes.save()
    wanted = {*there, *names, *([] if INDEX in damaged else _indexed(directory))}
    missing = sorted(wanted.difference(there))
    if not holds_weights(wanted):
        missing += [CONFIG] if CONFIG not in wanted else [WEIGHTS]
    return OwnCopy(tuple(files), tuple(missing), tuple(damaged))


def _as_named(path: Path, blob: str, digest: str) -> bool:
    if _SHA256.fullmatch(blob):
        return blob == digest
    return not _GIT.fullmatch(blob) or blob == git_blob_of(path)


def _indexed(directory: Path) -> list[str]:
    """The files of weights that the index names, where there is one that can be read."""
    path = directory / INDEX
    table = read_json(path).get("weight_map") if path.is_file() else None
    if not isinstance(table, dict):
        return []
    return sorted({name for name in table.values() if isinstance(name, str)})
