"""A rank's weights as they are held, kept in a file: the next start reads them instead of building.

What shapes them is told in the file as facts; one that differs makes the image stale, and it is
built anew. Tables of rows, which may be mapped, are not part of it.
"""

from __future__ import annotations

import hashlib
import math
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.image_file import READERS, ImageError, ImageReader, ImageWriter, opened
from dgpp.models.account import Account
from dgpp.models.forms import ModelForms
from dgpp.models.shard import Shard
from dgpp.models.sources import Depthwise, Linear, LoadedWeights, Vector
from dgpp.models.tables import Tables
from kernels_numba.backend import Backend, Matrix, Tensor
from kernels_numba.images import VECTOR_FORM, ArrayShape, HeldArrays, ImageBackend

GIB = 1 << 30
WARNING = "warning: "
_CODE = ("dgpp/models", "dgpp/checkpoint", "kernels_numba")
"""Sources by which a change of the program makes images stale."""


def image_facts(
    checkpoint: Checkpoint, shard: Shard, forms: ModelForms, backend: str, *, drafts: bool
) -> dict[str, str]:
    """Everything that shapes a rank's weights, by name."""
    return {
        "checkpoint": checkpoint.identity(),
        "code": _code_digest(),
        "machine": f"{platform.machine()} {sys.byteorder}",
        "backend": backend,
        "rank": str(shard.rank),
        "world": str(shard.world),
        "embedding": "vocab" if shard.split_embedding else "replicated",
        "drafts": str(drafts),
        "dense_weights": forms.dense_weights,
        "bf16_weights": forms.bf16_weights,
        "mtp_expert_format": forms.mtp_expert_format,
    }


def image_path(directory: Path, checkpoint: Path, facts: Mapping[str, str]) -> Path:
    """Where a rank's image of a checkpoint in these forms is: one file, whatever its age."""
    lasting = [str(checkpoint.resolve())] + [
        f"{name}={value}" for name, value in facts.items() if name not in ("checkpoint", "code")
    ]
    digest = hashlib.sha256("\n".join(lasting).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", checkpoint.resolve().name)[:48]
    return directory / f"{name}-{digest}-rank{facts['rank']}of{facts['world']}.img"


def _code_digest() -> str:
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in _CODE:
        for source in sorted((root / package).rglob("*.py")):
            digest.update(source.relative_to(root).as_posix().encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


class RecordedWeights(LoadedWeights):
    """Loads, and remembers every matrix and vector in order."""

    def __init__(self, binding: Binding, backend: Backend, shard: Shard, tables: Tables,
                 forms: ModelForms) -> None:  # fmt: skip
        super().__init__(binding, backend, shard, tables, forms)
        self.held: list[Matrix | Tensor] = []

    def _kept(self, tensor: Any) -> Any:
        self.held.append(tensor)
        return tensor

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        return self._kept(super().matrix(item, linears))

    def values(self, item: str, vector: Vector) -> Tensor:
        return self._kept(super().values(item, vector))

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        return self._kept(super().depthwise(item, kernels, taps))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        return self._kept(super().joined(item, names))


class _Reading:
    """All tensors of an image on their way into memory, several arrays at once."""

    def __init__(self, reader: ImageReader, backend: ImageBackend) -> None:
        self._reader, self._backend = reader, backend
        self._pool = ThreadPoolExecutor(READERS, "image")
        self._coming = [self._begin(at) for at in range(len(reader.table.tensors))]
        self._next = 0

    def _begin(self, at: int) -> tuple[HeldArrays, list[Future[None]]]:
        told = self._reader.table.tensors[at]
        lines = told.arrays[1].shape[0] if len(told.arrays) > 1 and told.arrays[1].shape else 0
        try:
            wanted = self._backend.array_shapes(told.form, told.rows, told.columns, lines)
        except ValueError as error:
            raise ImageError(f"holds a form that is not known: {told.form}") from error
        said = [ArrayShape(array.shape, np.dtype(array.dtype)) for array in told.arrays]
        if said != wanted:
            raise ImageError(f"its tensor {at} has arrays {said}, not {wanted}")
        arrays = tuple(self._backend.room(shape) for shape in wanted)
        futures = [
            future
            for stored, array in zip(told.arrays, arrays, strict=True)
            for future in self._reader.read(stored, array, self._pool)
        ]
        return HeldArrays(told.form, told.rows, told.columns, arrays), futures

    def take(self, rows: int, columns: int, forms: Sequence[int]) -> Any:
        """The next tensor, whole."""
        if self._next == len(self._coming):
            raise ImageError("ends before the model does")
        held, futures = self._coming[self._next]
        if (held.rows, held.columns) != (rows, columns) or held.form not in forms:
            raise ImageError(
                f"its tensor {self._next} is {held.rows} × {held.columns} in form {held.form}, the "
                f"model has {rows} × {columns}"
            )
        self._next += 1
        for future in futures:
            future.result()
        return self._backend.adopt(held)

    def finish(self) -> None:
        """Raises ImageError where something was not asked for."""
        if self._next < len(self._coming):
            raise ImageError("holds more than the model asks for")

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class RestoredWeights(LoadedWeights):
    """Gives out an image's tensors in the order in which they were recorded; what is no part of an
    image comes from the checkpoint. Raises ImageError."""

    def __init__(self, binding: Binding, backend: Backend, shard: Shard, tables: Tables,
                 forms: ModelForms, reading: _Reading) -> None:  # fmt: skip
        super().__init__(binding, backend, shard, tables, forms)
        self._reading = reading

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        stored = linears[0].format.form
        held = self._forms.held(item, stored)
        taken = [linear.own(self.shard, held).taken for linear in linears]
        rows, columns = sum(rows for rows, _ in taken), taken[0][1]
        return self._reading.take(rows, columns, (held, stored))

    def _vector_of(self, size: int) -> Tensor:
        return self._reading.take(1, size, (VECTOR_FORM,))

    def values(self, item: str, vector: Vector) -> Tensor:
        return self._vector_of(math.prod(vector.shape))

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        return self._vector_of(taps * sum(kernel.own(self.shard) for kernel in kernels))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        return self._vector_of(sum(self.shard.part(size, name) for name, size in names))


class ResidentImage:
    """One rank's image file: restored where it fits, else built and written. `notes` are for the
    start-up log."""

    def __init__(self, path: Path, facts: Mapping[str, str]) -> None:
        # The fold is a compiled kernel, which a plan does without.
        from kernels_numba.cpu.fold import fold

        self.path, self.facts, self._fold = path, dict(facts), fold
        self.notes: list[str] = []

    def load(
        self,
        build: Callable[[LoadedWeights], Any],
        source: Callable[..., LoadedWeights],
        backend: ImageBackend,
    ) -> tuple[Any, Account]:
        """What `build` makes of the image's weights or the checkpoint's, and what of the checkpoint
        they are. `source(kind, *more)` makes a source of that kind."""
        began = time.monotonic()
        try:
            with opened(self.path, self._fold) as reader:
                self._require_facts(reader)
                model = self._restore(reader, build, source, backend)
                self._say("restored", reader.path.stat().st_size, began)
                return model, _account_of(reader)
        except FileNotFoundError:
            pass
        except (ImageError, OSError) as error:
            self.notes.append(f"{WARNING}resident image {self.path}: {error}; built anew")
        recorded = source(RecordedWeights)
        assert isinstance(recorded, RecordedWeights), "only what was recorded can be written"
        model = build(recorded)
        self.notes.append(f"resident image: weights built in {time.monotonic() - began:.1f} s")
        self._write(recorded, backend)
        return model, recorded.account

    def _require_facts(self, reader: ImageReader) -> None:
        told = reader.table.facts
        for name in sorted(self.facts.keys() | told.keys()):
            mine, its = self.facts.get(name, "none"), told.get(name, "none")
            if mine != its:
                raise ImageError(f"is of {name} {its}, this is {mine}")

    def _restore(
        self,
        reader: ImageReader,
        build: Callable[[LoadedWeights], Any],
        source: Callable[..., LoadedWeights],
        backend: ImageBackend,
    ) -> Any:
        reading = _Reading(reader, backend)
        try:
            model = build(source(RestoredWeights, reading))
            reading.finish()
        finally:
            reading.close()
        return model

    def _write(self, recorded: RecordedWeights, backend: ImageBackend) -> None:
        """A disk that is full or cannot be written to is a warning: the weights are there."""
        began = time.monotonic()
        account = recorded.account
        tensors = [backend.held_arrays(tensor) for tensor in recorded.held]
        try:
            size = ImageWriter(self.path, self._fold).write(
                self.facts,
                tensors,
                (account.total, account.read, account.replicated),
                account.digests,
            )
        except OSError as error:
            reason = f"{error.strerror or error}"
            self.notes.append(f"{WARNING}resident image {self.path}: not written: {reason}")
            return
        self._say("written", size, began)

    def _say(self, what: str, size: int, began: float) -> None:
        took = time.monotonic() - began
        self.notes.append(
            f"resident image: {size / GIB:.2f} GiB {what} in {took:.1f} s ({self.path})"
        )


def _account_of(reader: ImageReader) -> Account:
    account = Account()
    account.total, account.read, account.replicated = reader.table.account
    account.digests = dict(reader.table.digests)
    return account
