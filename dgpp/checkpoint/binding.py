"""Strict binding: every tensor of a checkpoint is used once or ignored by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import Format
from dgpp.errors import CheckpointError

SHOWN = 5
"""Names listed when many tensors are left over."""


class Binding:
    """Hands out tensors after checking name, shape and dtype, and keeps account of them.

    `ignored` are the tensors that were set aside so far.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._left = set(checkpoint.names)
        self.ignored: list[str] = []

    def take(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> npt.NDArray[Any]:
        """Tensor `name`, which must exist, be unused, and have `shape` and one of `dtypes`."""
        entry = self.checkpoint.entry(name)
        where = self.checkpoint.directory
        if entry is None:
            message = f"{where}: tensor {name} is missing"
            raise CheckpointError(message)
        if name not in self._left:
            message = f"{where}: tensor {name} is bound twice"
            raise CheckpointError(message)
        if entry.dtype not in dtypes:
            message = f"{where}: tensor {name} is {entry.dtype}, not {' or '.join(dtypes)}"
            raise CheckpointError(message)
        if entry.shape != shape:
            message = f"{where}: tensor {name} has shape {list(entry.shape)}, not {list(shape)}"
            raise CheckpointError(message)
        self._left.discard(name)
        return self.checkpoint.read(name)

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of this name, used or not."""
        return self.checkpoint.entry(name) is not None

    def ignore(self, pattern: str) -> None:
        """Set aside whatever matches the shell-style `pattern`; it may be absent."""
        if any(sign in pattern for sign in "*?["):
            found = fnmatch.filter(self._left, pattern)
        else:
            found = [pattern] if pattern in self._left else []
        self._left.difference_update(found)
        self.ignored += found

    def finish(self) -> None:
        """CheckpointError naming tensors that are neither used nor ignored."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            message = (
                f"{self.checkpoint.directory}: tensors that the family does not know: "
                f"{', '.join(names[:SHOWN])}{more}"
            )
            raise CheckpointError(message)


def bind_matrix(
    binding: Binding, name: str, rows: int, columns: int, stored: Format
) -> list[npt.NDArray[Any]]:
    """The tensors that store matrix `name`, in its format's order; what it has no use for is set
    aside."""
    for suffix in stored.ignored:
        binding.ignore(f"{name}.{suffix}")
    return [
        binding.take(tensor.name_of(name), tensor.shape, tensor.dtypes)
        for tensor in stored.tensors(rows, columns)
    ]
