"""The room that a release takes on a disk, known before a byte of it is written."""

from __future__ import annotations

import errno
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import IO

import msgspec

from dgpp.checkpoint.receive import free_bytes
from dgpp.cluster.errors import ReleaseError
from dgpp.cluster.release_archive import MOST_BYTES, checked, opened

FULL = (errno.ENOSPC, errno.EDQUOT)
PIP_BYTES = 17 << 20
"""pip of an environment, with its modules compiled."""
_BLOCK = 4096
"""Bytes of which a file takes whole ones."""
_TAIL_BYTES = 4 << 20
"""The list of a wheel's files is within its last ones."""
_TAGS = 3
"""Python, ABI and platform: what the name of a wheel ends in."""


class Room(msgspec.Struct, frozen=True):
    """Bytes that a release takes: `unpacked` its files, `programs` the environment made of them."""

    unpacked: int
    programs: int

    @property
    def whole(self) -> int:
        return self.unpacked + self.programs


def require_room(archive: Path, releases: Path, key: str) -> None:
    """Raises ReleaseError where the disk of `releases`, named by `key`, cannot take `archive`."""
    need, free = room_of(archive), free_bytes(releases)
    if need.whole > free:
        raise ReleaseError(
            f"{key}: {releases}: {_mib(need.whole)} are needed ({_mib(need.unpacked)} unpacked, "
            f"{_mib(need.programs)} its environment), {free >> 20} MiB are free: make room there, "
            "or name another folder"
        )


def _mib(count: int) -> str:
    return f"{-(-count >> 20)} MiB"


def room_of(archive: Path) -> Room:
    """What an installed `archive` takes, at most a tenth more than it will. Raises ReleaseError,
    OSError."""
    unpacked, programs = 0, PIP_BYTES
    with opened(archive) as members:
        for member in members:
            unpacked += _on_disk(member.size)
            if unpacked > MOST_BYTES:
                break
            name = checked(member)[1]
            stream = members.extractfile(member)
            if stream is not None and name.endswith(".whl") and _fits(name):
                programs += _installed(stream, member.size)
    return Room(unpacked, programs)


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _fits(wheel: str) -> bool:
    """Whether it is for this Python and machine, by its name."""
    parts = wheel.removesuffix(".whl").rsplit("-", _TAGS)
    if len(parts) <= _TAGS:
        return False
    _, python, abi, platform = parts
    minor = sys.version_info.minor
    known = {"py3", f"cp3{minor}"}
    if abi == "abi3":
        known |= {f"cp3{older}" for older in range(minor)}
    machine = platform == "any" or platform.endswith(f"_{os.uname().machine}")
    return machine and not known.isdisjoint(python.split("."))


def _installed(wheel: IO[bytes], size: int) -> int:
    """Bytes of its files, and of its modules compiled."""
    before = last = b""
    while data := wheel.read(_TAIL_BYTES):
        before, last = last, data
    try:
        with zipfile.ZipFile(io.BytesIO(before + last)) as listed:
            files = listed.infolist()
    except zipfile.BadZipFile:
        # pip says what is wrong with it.
        return _on_disk(size)
    modules = sum(_on_disk(file.file_size) for file in files if file.filename.endswith(".py"))
    # A compiled module is larger than its text by a third on average, some are by more.
    return sum(_on_disk(file.file_size) for file in files) + 2 * modules
