"""Files that clients have sent, on disk: the data of each, and beside it what is known of it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from threading import Lock

import msgspec

from dgpp.errors import ConfigError
from dgpp.serve.files.errors import file_not_found, storage_full
from dgpp.serve.files.stored import StoredFile, is_id, new_id
from dgpp.serve.files.upload import Upload

KEY = "engine.file_inputs.directory"


class FileStore:
    """All files of a server. Every method may wait for the disk: call it off the loop.

    Without a `directory` files live in one of their own until `close`; it is made with the first.
    A file is whole or absent: data first, then its description, each under a temporary name.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        """Raises ConfigError where `directory` cannot be used or holds what does not fit."""
        self._directory = Path(directory).expanduser() if directory else None
        self._own: Path | None = None
        self._max_bytes = max_bytes
        self._files: dict[str, StoredFile] = {}
        self._lock = Lock()
        if self._directory is not None:
            self._read(self._directory)

    def add(self, upload: Upload) -> StoredFile:
        """Keep a file. Raises ApiError 413 `file_storage_full`."""
        made = StoredFile(
            new_id(), len(upload.data), int(time.time()), upload.filename, upload.purpose
        )
        with self._lock:
            if self._size() + made.bytes > self._max_bytes:
                raise storage_full(self._max_bytes)
            folder = self._folder()
            _write(folder / made.id, upload.data)
            _write(folder / f"{made.id}.json", msgspec.json.encode(made))
            self._files[made.id] = made
        return made

    def all(self) -> list[StoredFile]:
        with self._lock:
            return list(self._files.values())

    def get(self, name: str, param: str | None = None) -> StoredFile:
        """Raises ApiError 404 `file_not_found`."""
        with self._lock:
            found = self._files.get(name)
        if found is None:
            raise file_not_found(name, param)
        return found

    def content(self, name: str, param: str | None = None) -> bytes:
        """Raises ApiError 404 `file_not_found`."""
        with self._lock:
            if name not in self._files:
                raise file_not_found(name, param)
            return (self._folder() / name).read_bytes()

    def delete(self, name: str) -> None:
        """Raises ApiError 404 `file_not_found`."""
        with self._lock:
            if self._files.pop(name, None) is None:
                raise file_not_found(name)
            folder = self._folder()
            (folder / f"{name}.json").unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Files without a directory of the deployment's own are gone."""
        with self._lock:
            if self._own is not None:
                shutil.rmtree(self._own, ignore_errors=True)
                self._own = None
                self._files.clear()

    def _size(self) -> int:
        return sum(file.bytes for file in self._files.values())

    def _folder(self) -> Path:
        if self._directory is not None:
            return self._directory
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix="dgpp-files-"))
        return self._own

    def _read(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in folder.glob("file-*.json"):
                found = msgspec.json.decode(path.read_bytes(), type=StoredFile)
                if not is_id(found.id) or path.stem != found.id:
                    raise ConfigError(f"{KEY} = {folder}: {path.name} describes another file")
                size = (folder / found.id).stat().st_size
                if size != found.bytes:
                    raise ConfigError(
                        f"{KEY} = {folder}: {found.id} has {size} bytes, not {found.bytes}"
                    )
                self._files[found.id] = found
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{KEY} = {folder}: {error}") from error


def _write(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.part")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    unfinished.replace(path)
