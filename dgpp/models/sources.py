"""Where a model's parameters come from. One binding table serves three purposes.

A model asks its source for every parameter by name and shape. `PlannedWeights` only counts bytes,
`CheckedWeights` binds names, shapes and dtypes against a checkpoint and reads nothing,
`LoadedWeights` binds and hands the values to the backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.binding import Binding
from dgpp.checkpoint.formats import BF16, Format
from kernels_numba.backend import Backend, Matrix, Tensor
from kernels_numba.weights import DUMMY_DEVIATION, Part, matrix_bytes

FLOATS = ("BF16", "F32")


@dataclass(frozen=True, slots=True)
class Linear:
    """One projection of the checkpoint: [rows, columns] values stored under `name` in `format`.

    What is used of it: the row ranges `take` (first, count) in their order, all rows where there is
    none, and the columns `span` (first, count), all of them where it is None.
    """

    name: str
    rows: int
    columns: int
    format: Format = BF16
    take: tuple[tuple[int, int], ...] = ()
    span: tuple[int, int] | None = None

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return self.take or ((0, self.rows),)

    @property
    def taken(self) -> tuple[int, int]:
        """Rows and columns that are used."""
        columns = self.columns if self.span is None else self.span[1]
        return sum(count for _, count in self.ranges), columns


class WeightSource(Protocol):
    """What a model may ask for while it is built. `item` names a line of the memory plan."""

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        """The rows of `linears` stacked in order; all of one form and K."""

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        """Parameters `name` [size], in float32."""

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        """Several vectors as one, in order."""

    def ignore(self, pattern: str) -> None:
        """Tensors the model knows and does not use."""

    def unloaded(self) -> WeightSource:
        """A source that accounts for names as this one does, and loads nothing."""


class PlannedWeights:
    """Counts what each item would take, from shapes alone: bytes, and parameters of matrices."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}
        self.parameters: dict[str, int] = {}

    def _add(self, item: str, size: int) -> None:
        self.items[item] = self.items.get(item, 0) + size

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            rows, columns = linear.taken
            self._add(item, matrix_bytes(linear.format.form, rows, columns))
            self.parameters[item] = self.parameters.get(item, 0) + rows * columns
        return None

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        self._add(item, 4 * size)
        return None

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        self._add(item, 4 * sum(size for _, size in names))
        return None

    def ignore(self, pattern: str) -> None:
        """Nothing is stored of what is ignored."""

    def unloaded(self) -> WeightSource:
        return PlannedWeights()


def to_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 from float32, or from bf16 held as uint16 bits."""
    if values.dtype == np.float32:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


class CheckedWeights:
    """Binds every name against a checkpoint. Raises CheckpointError naming the first misfit."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def _arrays(self, linear: Linear) -> list[npt.NDArray[Any]]:
        """The tensors that store a projection, in its format's order."""
        for suffix in linear.format.ignored:
            self._binding.ignore(f"{linear.name}.{suffix}")
        return [
            self._binding.take(f"{linear.name}.{stored.suffix}", stored.shape, stored.dtypes)
            for stored in linear.format.tensors(linear.rows, linear.columns)
        ]

    def _values(self, name: str, size: int, dtypes: Sequence[str]) -> npt.NDArray[Any]:
        return self._binding.take(name, (size,), dtypes)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            self._arrays(linear)
        return None

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        self._values(name, size, dtypes)
        return None

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        for name, size in names:
            self._values(name, size, FLOATS)
        return None

    def ignore(self, pattern: str) -> None:
        self._binding.ignore(pattern)

    def unloaded(self) -> WeightSource:
        return CheckedWeights(self._binding)


class LoadedWeights(CheckedWeights):
    """Binds, and hands each parameter to the backend."""

    def __init__(self, binding: Binding, backend: Backend) -> None:
        super().__init__(binding)
        self._backend = backend

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        return self._backend.matrix([part for linear in linears for part in self._parts(linear)])

    def _parts(self, linear: Linear) -> list[Part]:
        stored = linear.format.parts(linear.name, self._arrays(linear))
        if linear.span is not None:
            stored = [part.cut_columns(*linear.span) for part in stored]
        if not linear.take:
            return stored
        return [_rows_of(stored, *piece) for piece in linear.take]

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        return self._backend.vector(to_float32(self._values(name, size, dtypes)))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        parts = [to_float32(self._values(name, size, FLOATS)) for name, size in names]
        return self._backend.vector(np.concatenate(parts))


def _rows_of(parts: Sequence[Part], first: int, count: int) -> Part:
    """Rows first … first + count − 1 of the stacked `parts`, which lie in one of them."""
    for part in parts:
        if first < part.rows:
            return part.cut_rows(first, count)
        first -= part.rows
    message = f"rows {first} … {first + count - 1} lie beyond the last part"
    raise ValueError(message)


class DummyWeights:
    """Seeded random parameters made by the backend from shapes alone; norms are near one."""

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self._backend = backend
        self._seeds = count(seed << 32)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        rows = sum(linear.taken[0] for linear in linears)
        form, columns = linears[0].format.form, linears[0].taken[1]
        return self._backend.dummy(form, rows, columns, next(self._seeds))

    def _values(self, name: str, size: int) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng(next(self._seeds))
        noise = rng.standard_normal(size, np.float32) * np.float32(DUMMY_DEVIATION)
        return noise + np.float32(1.0) if name.endswith("norm.weight") else noise

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        return self._backend.vector(self._values(name, size))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        parts = [self._values(name, size) for name, size in names]
        return self._backend.vector(np.concatenate(parts))

    def ignore(self, pattern: str) -> None:
        """There are no tensors to ignore."""

    def unloaded(self) -> WeightSource:
        return PlannedWeights()
