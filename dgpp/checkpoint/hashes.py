"""SHA-256 of a checkpoint's files, computed once for as long as a file stays as it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import msgspec

CACHE_FILE_BYTES = 16 << 20


def sha256_of(path: Path) -> str:
    """In hex; reads every byte."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_of(path: Path) -> str:
    """The name that git gives to the file's content, in hex: SHA-1 over its size and its bytes."""
    data = path.read_bytes()
    head = f"blob {len(data)}\0".encode()
    return hashlib.sha1(head + data, usedforsecurity=False).hexdigest()


def to_disk(path: Path) -> None:
    """The file or folder outlasts a power cut from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where this program keeps what it can find out again: XDG_CACHE_HOME/dgpp or ~/.cache/dgpp."""
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "dgpp"


class _Known(msgspec.Struct, frozen=True):
    size: int
    mtime_ns: int
    inode: int
    sha256: str


def _known(state: os.stat_result, sha256: str) -> _Known:
    return _Known(state.st_size, state.st_mtime_ns, state.st_ino, sha256)


class Hashes:
    """The hashes of files in `directory`, by name. Safe to ask from several threads.

    What was computed is remembered in the cache with the file's size, time and inode, and holds
    while those do. A cache that cannot be read or written costs time alone.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        name = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:16]
        folder = cache_directory(os.environ if environ is None else environ)
        self._file = folder / "hashes" / f"{name}.json"
        self._known = self._remembered()
        self._lock = Lock()

    def _remembered(self) -> dict[str, _Known]:
        try:
            if self._file.stat().st_size > CACHE_FILE_BYTES:
                return {}
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Known])
        except (OSError, msgspec.DecodeError):
            return {}

    def sha256(self, name: str, *, anew: bool = False) -> str:
        """Of the file `name`; with `anew` every byte is read whatever is remembered. OSError."""
        path = self._directory / name
        state, known = path.stat(), self._known.get(name)
        if not anew and known and known == _known(state, known.sha256):
            return known.sha256
        found = sha256_of(path)
        with self._lock:
            self._known[name] = _known(state, found)
        return found

    def note(self, name: str, sha256: str) -> None:
        """It was computed already, while the file had another place on this disk. OSError."""
        with self._lock:
            self._known[name] = _known((self._directory / name).stat(), sha256)

    def save(self) -> None:
        """Remember them for other processes."""
        fresh = self._file.with_suffix(f".{os.getpid()}.new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(self._known))
            fresh.replace(self._file)
        except OSError:
            fresh.unlink(missing_ok=True)
