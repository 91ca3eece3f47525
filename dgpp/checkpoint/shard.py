"""One safetensors file, mapped and never trusted: every claim of its header is checked."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dgpp.errors import CheckpointError

MAX_HEADER = 100_000_000
"""Bytes of header that the format allows."""

# Types NumPy does not have are read as unsigned integers of their width.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(np.uint8),
    "F8_E5M2": np.dtype(np.uint8),
    "F8_E8M0": np.dtype(np.uint8),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F64": np.dtype("<f8"),
}


class TensorEntry(msgspec.Struct, frozen=True):
    """Where one tensor lies: `dtype` as the file writes it, offsets from the data section."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        message = f"name {twice!r} occurs twice"
        raise ValueError(message)
    return table


class Shard:
    """A mapped safetensors file and its tensors by name. Raises CheckpointError naming the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else None
        except OSError as error:
            message = f"{path}: {error.strerror}"
            raise CheckpointError(message) from error
        self._start = 8 + self._header_length(size)
        self.entries = self._parse(size - self._start)

    def _fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {what}")

    def _header_length(self, size: int) -> int:
        if size < 8 or self._map is None:
            raise self._fail(f"truncated: {size} bytes hold no safetensors header")
        length = int.from_bytes(self._map[:8], "little")
        if length > MAX_HEADER:
            raise self._fail(f"header of {length} bytes is over the limit of {MAX_HEADER}")
        if 8 + length > size:
            raise self._fail(f"truncated: header needs {8 + length} bytes, the file has {size}")
        return length

    def _parse(self, data_bytes: int) -> dict[str, TensorEntry]:
        assert self._map is not None
        try:
            header = json.loads(self._map[8 : self._start], object_pairs_hook=_reject_duplicates)
        except (ValueError, RecursionError) as error:
            raise self._fail(f"header is not valid: {error}") from error
        if not isinstance(header, dict):
            raise self._fail("header is not a JSON object")
        header.pop("__metadata__", None)
        entries = {name: self._entry(name, raw, data_bytes) for name, raw in header.items()}
        reach = 0
        for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
            if entry.begin < reach:
                raise self._fail(f"tensor {entry.name} overlaps the one before it")
            reach = max(reach, entry.end)
        if reach != data_bytes:
            raise self._fail(f"{data_bytes - reach} bytes after the last tensor belong to none")
        return entries

    def _entry(self, name: str, raw: Any, data_bytes: int) -> TensorEntry:
        try:
            dtype = raw["dtype"]
            shape = tuple(msgspec.convert(raw["shape"], list[int]))
            begin, end = msgspec.convert(raw["data_offsets"], tuple[int, int])
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            raise self._fail(f"tensor {name}: malformed header entry") from error
        if dtype not in DTYPES:
            raise self._fail(f"tensor {name}: unknown dtype {dtype!r}")
        if any(extent < 0 for extent in shape):
            raise self._fail(f"tensor {name}: negative extent in shape {list(shape)}")
        if not 0 <= begin <= end:
            raise self._fail(f"tensor {name}: offsets [{begin}, {end}] are not a range")
        if end > data_bytes:
            raise self._fail(
                f"truncated: tensor {name} ends at byte {end}, the file holds {data_bytes}"
            )
        wanted = math.prod(shape) * DTYPES[dtype].itemsize
        if end - begin != wanted:
            raise self._fail(
                f"tensor {name}: {dtype} {list(shape)} needs {wanted} bytes, not {end - begin}"
            )
        return TensorEntry(name, dtype, shape, begin, end)

    @property
    def header(self) -> bytes:
        """The header as it is written."""
        assert self._map is not None
        return self._map[: self._start]

    def read(self, name: str) -> npt.NDArray[Any]:
        """The tensor as a read-only view of the mapped file."""
        assert self._map is not None
        entry = self.entries[name]
        dtype = DTYPES[entry.dtype]
        count = math.prod(entry.shape)
        if count == 0:
            return np.zeros(entry.shape, dtype)
        flat = np.frombuffer(self._map, dtype, count, self._start + entry.begin)
        return flat.reshape(entry.shape)

    def scattered(self, name: str) -> None:
        """The tensor will be read a few bytes here and there: no pages ahead of them."""
        entry = self.entries[name]
        first = -(-(self._start + entry.begin) // mmap.PAGESIZE) * mmap.PAGESIZE
        length = self._start + entry.end - first
        if self._map is not None and length > 0:
            self._map.madvise(mmap.MADV_RANDOM, first, length)

    def release(self) -> None:
        """Let go of the pages read so far; views stay valid and read the file again."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)
