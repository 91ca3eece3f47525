"""A copy of a checkpoint as a node takes it in: staged, proved by SHA-256, then put in its place.

Large files go into the Hugging Face cache as that program keeps them, or into a plain folder.
What is staged and not proved is never in the way of a model that is served.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from dgpp.checkpoint.hashes import Hashes, sha256_of, to_disk
from dgpp.checkpoint.hub_cache import (
    COMMIT,
    blob,
    link_to_blob,
    name_commit,
    named_commit,
    snapshot,
)
from dgpp.checkpoint.resolve import HUB_NAME, hub_directory
from dgpp.checkpoint.served_files import CONFIG, is_plain_name
from dgpp.errors import FetchError

STAGED = ".dgpp-incoming"


class Depth(StrEnum):
    """How closely files are looked at: their SIZE alone; by a hash that may be KNOWN from before;
    every byte ANEW."""

    SIZE = "size"
    KNOWN = "known"
    ANEW = "anew"


class CopyState(StrEnum):
    """A file is WHOLE in its place, HERE but not in its place yet, DAMAGED or ABSENT."""

    WHOLE = "whole"
    HERE = "here"
    DAMAGED = "damaged"
    ABSENT = "absent"


class CopyFile(msgspec.Struct, frozen=True):
    """`sha256` may be empty where files are looked at by their size; `blob` names it in a cache."""

    name: str
    size: int
    sha256: str
    blob: str = ""


class Copy(msgspec.Struct, frozen=True):
    """`files` of `model` at `commit`, for the Hugging Face cache `hub` (empty: the node's own);
    without a commit `model` is the folder they are for."""

    model: str
    commit: str
    hub: str
    files: tuple[CopyFile, ...]

    @property
    def place(self) -> Path:
        """The folder in which a server finds the files."""
        if self.commit:
            return snapshot(self.model, self._hub, self.commit)
        return Path(self.model).expanduser()

    @property
    def _hub(self) -> Path:
        return hub_directory({"HF_HUB_CACHE": self.hub} if self.hub else os.environ)

    @property
    def staging(self) -> Path:
        """On the file system of the place, so that what is proved need only be renamed."""
        if self.commit:
            return snapshot(self.model, self._hub, self.commit).parent.parent / STAGED / self.commit
        place = self.place.absolute()
        return place.parent / STAGED / hashlib.sha256(str(place).encode()).hexdigest()[:16]

    def home(self, file: CopyFile) -> Path:
        """Where the bytes of `file` belong."""
        if self.commit:
            return blob(self.model, self._hub, file.blob)
        return self.place / file.name

    def main(self) -> str:
        """The commit that a server takes; empty where none is named."""
        return named_commit(self.model, self._hub) if self.commit else ""

    def make_main(self) -> None:
        name_commit(self.model, self._hub, self.commit)

    def check(self) -> None:
        """Raises FetchError where it is not what a copy can be."""
        if self.commit and not (HUB_NAME.fullmatch(self.model) and COMMIT.fullmatch(self.commit)):
            raise FetchError(f"no copy of a model: {self.model!r} at {self.commit!r}")
        for file in self.files:
            plain = is_plain_name(file.name) and (not self.commit or is_plain_name(file.blob))
            if not plain:
                raise FetchError(f"no copy of a model: a file named {file.name!r}")


class Held(msgspec.Struct, frozen=True):
    """What a node has of a copy, by file; `staging` is where the rest is to be sent, of which
    `staged` bytes are there. `free` bytes are free; `programs` can take it in there."""

    states: dict[str, CopyState]
    staging: str
    staged: int
    free: int
    main: str
    programs: tuple[str, ...]


def look(copy: Copy, depth: Depth) -> Held:
    """What this node has of `copy`. Writes nothing but hashes. Raises FetchError, OSError."""
    copy.check()
    hashes: dict[Path, Hashes] = {}
    states = {file.name: _state(copy, file, depth, hashes) for file in copy.files}
    for known in hashes.values():
        known.save()
    staged = sum(
        (copy.staging / file.name).stat().st_size
        for file in copy.files
        if states[file.name] is not CopyState.WHOLE and (copy.staging / file.name).exists()
    )
    free = free_bytes(copy.staging)
    return Held(states, str(copy.staging), staged, free, copy.main(), programs())


def _state(copy: Copy, file: CopyFile, depth: Depth, hashes: dict[Path, Hashes]) -> CopyState:
    home, staged = copy.home(file), copy.staging / file.name
    known = hashes.setdefault(home.parent, Hashes(home.parent))
    found = CopyState.ABSENT
    if home.is_file():
        if _is(home, file, depth, known):
            linked = (copy.place / file.name).resolve() == home.resolve()
            return CopyState.WHOLE if linked else CopyState.HERE
        found = CopyState.DAMAGED
    if staged.is_file() and staged.stat().st_size == file.size:
        return CopyState.HERE
    return found


def _is(home: Path, file: CopyFile, depth: Depth, known: Hashes) -> bool:
    if home.stat().st_size != file.size:
        return False
    if depth is Depth.SIZE or not file.sha256:
        return True
    return known.sha256(home.name, anew=depth is Depth.ANEW) == file.sha256


def programs() -> tuple[str, ...]:
    """What of this machine files can be sent with, the better first."""
    return tuple(name for name in ("rsync", "tar") if shutil.which(name))


def free_bytes(folder: Path) -> int:
    """What is free on the disk that `folder` is on, or will be."""
    there = (place for place in (folder, *folder.absolute().parents) if place.is_dir())
    return shutil.disk_usage(next(there)).free


def open_staging(copy: Copy) -> None:
    """Make the folder that files are sent to. Raises FetchError, OSError."""
    copy.check()
    copy.staging.mkdir(mode=0o755, parents=True, exist_ok=True)


def adopt(copy: Copy, *, main: bool) -> tuple[str, ...]:
    """Put in its place what was staged, file by file as each is proved; the names of those that
    are not as they should be, which are deleted.

    When all are there, `main` says that a server takes this commit from now on.
    Raises FetchError where a file is neither staged nor there, OSError.
    """
    copy.check()
    # Last what makes a folder a model: without it nothing serves the rest.
    order = sorted(copy.files, key=lambda file: file.name == CONFIG)
    wrong = tuple(_adopt(copy, order))
    if wrong:
        return wrong
    if copy.commit:
        for file in order:
            link_to_blob(copy.place, file.name, file.blob)
        to_disk(copy.place)
        if main:
            copy.make_main()
    drop(copy)
    return ()


def _adopt(copy: Copy, order: list[CopyFile]) -> Iterator[str]:
    """The names of files that came damaged; config.json stays where it is while there are some."""
    wrong = False
    known: dict[Path, Hashes] = {}
    for file in order:
        staged, home = copy.staging / file.name, copy.home(file)
        if not staged.exists():
            if not home.is_file():
                raise FetchError(f"{file.name} is neither at {home} nor in {copy.staging}")
            continue
        if staged.stat().st_size != file.size or sha256_of(staged) != file.sha256:
            staged.unlink()
            wrong = True
            yield file.name
        elif file.name != CONFIG or not wrong:
            to_disk(staged)
            home.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(home)
            known.setdefault(home.parent, Hashes(home.parent)).note(home.name, file.sha256)
    for hashes in known.values():
        hashes.save()


def drop(copy: Copy) -> None:
    """Forget what was staged and not put in its place."""
    copy.check()
    shutil.rmtree(copy.staging, ignore_errors=True)
    with contextlib.suppress(OSError):
        # Another copy may be on its way into the same folder.
        copy.staging.parent.rmdir()
