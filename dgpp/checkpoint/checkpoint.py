"""A checkpoint directory: its config.json and all tensors of its shards by name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dgpp.checkpoint.json_file import read_json
from dgpp.checkpoint.served_files import INDEX
from dgpp.checkpoint.shard import Shard, TensorEntry
from dgpp.errors import CheckpointError


class Checkpoint:
    """All tensors of a directory. Opening it checks headers and index, and reads no weights."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = read_json(directory / "config.json")
        self._shards = [Shard(path) for path in self._shard_paths()]
        self._home: dict[str, Shard] = {}
        for shard in self._shards:
            for name in shard.entries:
                if name in self._home:
                    message = f"{shard.path}: tensor {name} is also in {self._home[name].path.name}"
                    raise CheckpointError(message)
                self._home[name] = shard
        self._check_index()

    def _shard_paths(self) -> list[Path]:
        paths = sorted(self.directory.glob("*.safetensors"))
        if not paths:
            message = f"{self.directory}: no *.safetensors file"
            raise CheckpointError(message)
        return paths

    def _check_index(self) -> None:
        """With an index, every tensor it names is in the shard it names, and none is elsewhere."""
        path = self.directory / INDEX
        if not path.exists():
            return
        table = read_json(path).get("weight_map")
        if not isinstance(table, dict):
            message = f"{path}: weight_map is missing"
            raise CheckpointError(message)
        for name, file in table.items():
            if name not in self._home:
                message = f"{path}: tensor {name} should be in {file}, where it is not"
                raise CheckpointError(message)
            if self._home[name].path.name != file:
                message = f"{path}: tensor {name} is in {self._home[name].path.name}, not in {file}"
                raise CheckpointError(message)

    @property
    def files(self) -> list[str]:
        """The names of its safetensors files."""
        return [shard.path.name for shard in self._shards]

    @property
    def names(self) -> list[str]:
        return list(self._home)

    def identity(self) -> str:
        """16 hex digits over config.json and, of each file, name, size, time and header: they
        change where the weights do."""
        digest = hashlib.sha256((self.directory / "config.json").read_bytes())
        for shard in self._shards:
            state = shard.path.stat()
            digest.update(f"{shard.path.name} {state.st_size} {state.st_mtime_ns}".encode())
            digest.update(shard.header)
        return digest.hexdigest()[:16]

    def entry(self, name: str) -> TensorEntry | None:
        """What the header says of tensor `name`, None when there is no such tensor."""
        shard = self._home.get(name)
        return None if shard is None else shard.entries[name]

    def bytes_of(self, name: str) -> int:
        """Bytes of tensor `name` on disk; KeyError when there is no such tensor."""
        entry = self._home[name].entries[name]
        return entry.end - entry.begin

    def read(self, name: str) -> npt.NDArray[Any]:
        """Tensor `name` as a view of its mapped file, bf16 and fp8 as unsigned integers."""
        return self._home[name].read(name)

    def scattered(self, name: str) -> None:
        """Tensor `name` will be read a few bytes here and there, where it lies."""
        self._home[name].scattered(name)

    def release(self) -> None:
        """Let go of every page read so far."""
        for shard in self._shards:
            shard.release()
