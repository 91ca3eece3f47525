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
from kernels_numba.backend import Backend, Matrix, Tensor
from kernels_numba.weights import DUMMY_DEVIATION, Form, Part, matrix_bytes

FLOATS = ("BF16", "F32")


@dataclass(frozen=True, slots=True)
class Linear:
    """One projection of the checkpoint: `name`.weight with [rows, columns] values of `form`."""

    name: str
    rows: int
    columns: int
    form: Form = Form.BF16


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
    """Counts what each item would take, from shapes alone."""

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def _add(self, item: str, size: int) -> None:
        self.items[item] = self.items.get(item, 0) + size

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            self._add(item, matrix_bytes(linear.form, linear.rows, linear.columns))
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

    def _part(self, linear: Linear) -> Part:
        name, rows, columns = linear.name, linear.rows, linear.columns
        take = self._binding.take
        if linear.form is not Form.NVFP4:
            dtype = "BF16" if linear.form is Form.BF16 else "F32"
            return Part(linear.form, take(f"{name}.weight", (rows, columns), [dtype]))
        data = take(f"{name}.weight", (rows, columns // 2), ["U8"])
        scale = take(f"{name}.weight_scale", (rows, columns // 16), ["F8_E4M3"])
        multiplier = take(f"{name}.weight_scale_2", (), ["F32"])
        self._binding.ignore(f"{name}.input_scale")
        return Part(linear.form, data, scale, float(multiplier))

    def _values(self, name: str, size: int, dtypes: Sequence[str]) -> npt.NDArray[Any]:
        return self._binding.take(name, (size,), dtypes)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            self._part(linear)
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
        return self._backend.matrix([self._part(linear) for linear in linears])

    def vector(self, item: str, name: str, size: int, dtypes: Sequence[str] = FLOATS) -> Tensor:
        return self._backend.vector(to_float32(self._values(name, size, dtypes)))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        parts = [to_float32(self._values(name, size, FLOATS)) for name, size in names]
        return self._backend.vector(np.concatenate(parts))


class DummyWeights:
    """Seeded random parameters made by the backend from shapes alone; norms are near one."""

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self._backend = backend
        self._seeds = count(seed << 32)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        rows = sum(linear.rows for linear in linears)
        first = linears[0]
        return self._backend.dummy(first.form, rows, first.columns, next(self._seeds))

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
