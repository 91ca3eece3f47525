"""Where a model's parameters come from. One binding table serves three purposes.

A model asks its source for every parameter by name and shape. `PlannedWeights` only counts bytes,
`CheckedWeights` binds names, shapes and dtypes against a checkpoint and reads nothing,
`LoadedWeights` binds and hands the values to the backend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from dgpp.checkpoint.binding import Binding, bind_matrix
from dgpp.checkpoint.formats import BF16, Format, to_float32
from dgpp.checkpoint.scales import require_numbers, scales_of
from dgpp.errors import CheckpointError, ConfigError
from dgpp.models.account import Account
from dgpp.models.encoding import Changes, fp8_cut, packed
from dgpp.models.forms import AS_STORED, ModelForms
from dgpp.models.layers.extended import extended
from dgpp.models.shard import ALONE, Shard, Split
from dgpp.models.table_binding import account_table, bind_table, own_rows
from dgpp.models.tables import RESIDENT, Table, Tables
from kernels_numba.backend import Backend, Matrix, Tensor
from kernels_numba.weights import LAYOUTS, Form, Part, matrix_bytes

FLOATS = ("BF16", "F32")
INTEGERS = ("I64", "I32")
Extent: TypeAlias = int | tuple[int, ...]
"""A vector's size, or the shape of a small array."""


class Linear(msgspec.Struct, frozen=True):
    """One projection of the checkpoint: [rows, columns] values stored under `name` in `format`.

    What is used of it: the row ranges `take` (first, count) in their order, all rows where there is
    none, and the columns `span` (first, count), all of them where it is None. `split` says how
    ranks share that out: each range by itself (TAKEN: `take` is what this rank has, and so have
    `copies` ranks).
    """

    name: str
    rows: int
    columns: int
    format: Format = BF16
    take: tuple[tuple[int, int], ...] = ()
    span: tuple[int, int] | None = None
    split: Split = Split.NONE
    copies: int = 1

    def own(self, shard: Shard, held: Form | None = None) -> Linear:
        """What one rank uses of it, `held` in another form than it is stored in where that is
        given. Raises ConfigError where that is no cut of the form, CheckpointError where the whole
        is none."""
        form = self.format.form if held is None else held
        said = self.format.name if form is self.format.form else form.name
        layout = LAYOUTS[form]
        if not layout.grid and self.taken[1] % (layout.group or 1):
            raise CheckpointError(
                f"config.json: {self.name} has {self.taken[1]} columns, which are no whole groups "
                f"of {layout.group} ({said})"
            )
        if self.split in (Split.NONE, Split.TAKEN) or shard.world == 1:
            return structs.replace(self, split=Split.NONE)
        if self.split is not Split.COLUMNS:
            take = tuple(
                (first + part.start, len(part))
                for first, count in self.ranges
                for part in [shard.span(self.split, count, self.name)]
            )
            return structs.replace(self, take=take, split=Split.NONE)
        start, count = self.span or (0, self.columns)
        part = shard.span(Split.COLUMNS, count, self.name)
        step = layout.group or 1
        if len(part) % step:
            raise ConfigError(
                f"world_size: {shard.world} cuts {self.name} into {len(part)} columns, which are "
                f"no whole groups of {step} ({said})"
            )
        return structs.replace(self, span=(start + part.start, len(part)), split=Split.NONE)

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return self.take or ((0, self.rows),)

    @property
    def taken(self) -> tuple[int, int]:
        """Rows and columns that are used."""
        columns = self.columns if self.span is None else self.span[1]
        return sum(count for _, count in self.ranges), columns


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise kernel `name` [channels, 1, taps]; ranks share out each of the channel ranges
    (first, count), all channels where none are given, unless each has them `whole`."""

    name: str
    channels: int
    take: tuple[tuple[int, int], ...] = ()
    whole: bool = False

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return self.take or ((0, self.channels),)

    def own(self, shard: Shard) -> int:
        """Channels of one rank."""
        return sum(len(span) for _, span in self.spans(shard))

    def spans(self, shard: Shard) -> list[tuple[int, range]]:
        """The first channel of each range, and what a rank has of the range."""
        split = Split.NONE if self.whole else Split.ROWS
        return [(at, shard.span(split, count, self.name)) for at, count in self.ranges]


@dataclass(frozen=True, slots=True)
class Vector:
    """Parameters `name` of a shape, in one of `dtypes`; `plus` is added to what is stored."""

    name: str
    shape: tuple[int, ...]
    dtypes: Sequence[str] = FLOATS
    plus: float = 0.0


class WeightSource(ABC):
    """What a model may ask for while it is built. `item` names a line of the memory plan.

    Everything comes as the rank that `shard` describes holds it.
    """

    shard: Shard
    tables: Tables
    """Where tables are read at run time."""

    @abstractmethod
    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        """The rows of `linears` stacked in order; all of one form and K."""

    def vector(
        self,
        item: str,
        name: str,
        size: Extent,
        dtypes: Sequence[str] = FLOATS,
        *,
        plus: float = 0.0,
    ) -> Tensor:
        """Parameters `name` [size] or of a shape `size`, in float32, `plus` added."""
        shape = (size,) if isinstance(size, int) else size
        return self.values(item, Vector(name, shape, dtypes, plus))

    @abstractmethod
    def values(self, item: str, vector: Vector) -> Tensor:
        """The parameters that `vector` asks for."""

    @abstractmethod
    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        """Depthwise kernels side by side as float32 [taps, channels]: this rank's part of each."""

    @abstractmethod
    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        """Several vectors as one, in order; each is shared out as rows are."""

    @abstractmethod
    def table(self, item: str, table: Table) -> Any:
        """What the backend looks rows up in: those that this rank keeps in memory, or all where
        they are mapped. None of a plan."""

    def choose(self, names: Sequence[str]) -> str:
        """The tensor of `names` that the checkpoint has; the first where it has none."""
        return names[0]

    @abstractmethod
    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        """Whole numbers `name` of `shape`, each from 0 to `limit` − 1, in int32."""

    def beside(self, name: str) -> Path | None:
        """The file `name` beside the weights that are read; None where none are."""
        return None

    def ignore(self, pattern: str) -> None:  # noqa: B027 - nothing to do where nothing is read
        """Tensors the model knows and does not use."""

    @abstractmethod
    def unloaded(self) -> WeightSource:
        """A source that accounts for names as this one does, and loads nothing."""


_SHAPE = attrgetter("rows", "columns", "format", "take", "span", "split")


def _alike(linears: Sequence[Linear]) -> Iterator[tuple[Linear, int]]:
    """Each run of projections that differ by name alone: its first, and how many they are. A
    layer's experts are one run, where planning them one by one would take seconds."""

    for _, run in groupby(linears, _SHAPE):
        first, *others = run
        yield first, 1 + len(others)


class PlannedWeights(WeightSource):
    """Counts what each item would take, from shapes alone: bytes, and parameters of matrices;
    `changes` is what is not held as it is stored."""

    def __init__(
        self,
        shard: Shard = ALONE,
        tables: Tables = RESIDENT,
        forms: ModelForms = AS_STORED,
    ) -> None:
        self.shard = shard
        self.tables = tables
        self.items: dict[str, int] = {}
        self.parameters: dict[str, int] = {}
        self.mapped = 0
        """Bytes of tables that stay in their files."""
        self.tabled = False
        """Whether there is a table at all."""
        self.changes = Changes()
        self._forms = forms

    def _add(self, item: str, size: int) -> None:
        self.items[item] = self.items.get(item, 0) + size

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear, times in _alike(linears):
            stored = linear.format.form
            held = self._forms.held(item, stored)
            rows, columns = linear.own(self.shard, held).taken
            size = times * matrix_bytes(held, rows, columns)
            self._add(item, size)
            self.parameters[item] = self.parameters.get(item, 0) + times * rows * columns
            if held is not stored:
                self.changes.add(held, item, times * matrix_bytes(stored, rows, columns), size)
        return None

    def values(self, item: str, vector: Vector) -> Tensor:
        self._add(item, 4 * math.prod(vector.shape))
        return None

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        self._add(item, 4 * taps * sum(kernel.own(self.shard) for kernel in kernels))
        return None

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        self._add(item, 4 * sum(self.shard.part(size, name) for name, size in names))
        return None

    def table(self, item: str, table: Table) -> Any:
        self.tabled = True
        layout = LAYOUTS[table.format.form]
        each = layout.code_bytes(table.columns)
        if not table.scale:
            each += layout.scales(table.columns) * layout.scale.dtype.itemsize
        if self.tables.mapped:
            self.mapped += table.rows * each
        else:
            self._add(item, table.span[1] * each)

    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        self._add(item, 4 * math.prod(shape))
        return None

    def unloaded(self) -> WeightSource:
        return PlannedWeights(self.shard, self.tables, self._forms)


class CheckedWeights(WeightSource):
    """Binds every name against a checkpoint. Raises CheckpointError naming the first misfit."""

    def __init__(self, binding: Binding, shard: Shard = ALONE, tables: Tables = RESIDENT) -> None:
        self.shard = shard
        self.tables = tables
        self._binding = binding
        self._elsewhere = None if tables.checkpoint is None else Binding(tables.checkpoint)

    def _arrays(self, linear: Linear) -> list[npt.NDArray[Any]]:
        """The tensors that store a projection, in its format's order."""
        return bind_matrix(self._binding, linear.name, linear.rows, linear.columns, linear.format)

    def _values(self, name: str, shape: tuple[int, ...], dtypes: Sequence[str]) -> npt.NDArray[Any]:
        return self._binding.take(name, shape, dtypes)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        for linear in linears:
            self._arrays(linear)
        return None

    def values(self, item: str, vector: Vector) -> Tensor:
        self._values(vector.name, vector.shape, vector.dtypes)
        return None

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        for kernel in kernels:
            self._values(kernel.name, (kernel.channels, 1, taps), FLOATS)
        return None

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        for name, size in names:
            self._values(name, (size,), FLOATS)
        return None

    def table(self, item: str, table: Table) -> Any:
        bind_table(self._binding, self._elsewhere, table)

    def choose(self, names: Sequence[str]) -> str:
        return next((name for name in names if self._binding.has(name)), names[0])

    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        self._values(name, shape, INTEGERS)
        return None

    def ignore(self, pattern: str) -> None:
        self._binding.ignore(pattern)

    def unloaded(self) -> WeightSource:
        return CheckedWeights(self._binding, self.shard, self.tables)


class LoadedWeights(CheckedWeights):
    """Binds, and hands the rank's part of each parameter to the backend; `account` says what was
    read. Nothing else of a mapped file is touched."""

    def __init__(
        self,
        binding: Binding,
        backend: Backend,
        shard: Shard = ALONE,
        tables: Tables = RESIDENT,
        forms: ModelForms = AS_STORED,
    ) -> None:
        super().__init__(binding, shard, tables)
        self._backend = backend
        self._forms = forms
        self.account = Account()

    def beside(self, name: str) -> Path | None:
        return self._binding.checkpoint.directory / name

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        held = self._forms.held(item, linears[0].format.form)
        parts = [part for linear in linears for part in self._parts(linear, held)]
        return self._backend.matrix(packed(parts) if held is Form.BF12 else parts)

    def _parts(self, linear: Linear, held: Form) -> list[Part]:
        arrays = self._arrays(linear)
        stored = linear.format.parts(linear.name, arrays)
        own = linear.own(self.shard, held)
        parts = _used(stored, own)
        if scales := scales_of(linear.format, linear.name, linear.rows, linear.columns):
            for part in parts:
                require_numbers(part, scales)
        if self.shard.world > 1:
            whole = parts
            if linear.split is not Split.NONE:
                whole = stored if linear.split is Split.TAKEN else _used(stored, linear)
            alike = arrays if linear.split is Split.NONE else None
            self.account.add(linear.name, linear.copies * _codes(whole), _codes(parts), alike)
        if held is Form.FP8_BLOCK and linear.format.form is not held:
            return fp8_cut(stored[0], own.ranges, own.span or (0, own.columns))
        return parts

    def _vector(self, vector: Vector, split: Split) -> npt.NDArray[np.float32]:
        name = vector.name
        whole = self._values(name, vector.shape, vector.dtypes)
        span = self.shard.span(split, len(whole), name)
        own = whole[span.start : span.stop]
        if self.shard.world > 1:
            alike = [whole] if split is Split.NONE else None
            self.account.add(name, whole.nbytes, own.nbytes, alike)
        return to_float32(own)

    def values(self, item: str, vector: Vector) -> Tensor:
        values, plus = self._vector(vector, Split.NONE), vector.plus
        return self._backend.vector(values + np.float32(plus) if plus else values)

    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        values = self._values(name, shape, INTEGERS)
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise CheckpointError(f"tensor {name} has values that are not within 0..{limit - 1}")
        if self.shard.world > 1:
            self.account.add(name, values.nbytes, values.nbytes, [values])
        return extended(self._backend).integers(values.astype(np.int32))

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        columns = []
        for kernel in kernels:
            name, shape = kernel.name, (kernel.channels, 1, taps)
            whole = self._values(name, shape, FLOATS)
            spans = kernel.spans(self.shard)
            own = np.concatenate([whole[at + s.start : at + s.stop, 0] for at, s in spans])
            if self.shard.world > 1:
                alike = [whole] if kernel.whole else None
                self.account.add(name, whole.nbytes, own.nbytes, alike)
            columns.append(to_float32(own).T)
        return self._backend.vector(np.ascontiguousarray(np.concatenate(columns, axis=1)))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        parts = [self._vector(Vector(name, (size,)), Split.ROWS) for name, size in names]
        return self._backend.vector(np.concatenate(parts))

    def table(self, item: str, table: Table) -> Any:
        shards = bind_table(self._binding, self._elsewhere, table).shards
        mapped = self.tables.mapped
        if mapped:
            parts = [shard.part for shard in shards]
            for shard in shards:
                shard.checkpoint.scattered(shard.tensor)
        else:
            parts = own_rows(shards, *table.span)
        if self.shard.world > 1:
            account_table(self.account, shards, parts, mapped=mapped)
        return extended(self._backend).table(parts, mapped=mapped)


def _used(stored: Sequence[Part], linear: Linear) -> list[Part]:
    """What is used of the stacked parts."""
    cut = list(stored)
    if linear.span is not None:
        cut = [part.cut_columns(*linear.span) for part in cut]
    if not linear.take:
        return cut
    return [_rows_of(cut, *piece) for piece in linear.take]


def _codes(parts: Sequence[Part]) -> int:
    """Bytes of the parts' values without their scales."""
    return sum(part.data.nbytes for part in parts)


def _rows_of(parts: Sequence[Part], first: int, count: int) -> Part:
    """Rows first … first + count − 1 of the stacked `parts`, which lie in one of them."""
    for part in parts:
        if first < part.rows:
            return part.cut_rows(first, count)
        first -= part.rows
    message = f"rows {first} … {first + count - 1} lie beyond the last part"
    raise ValueError(message)
