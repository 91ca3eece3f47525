"""Random parameters where a model's files are not: for measuring, and for trying a deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.models.encoding import packed
from dgpp.models.forms import AS_STORED, ModelForms
from dgpp.models.layers.extended import extended
from dgpp.models.shard import ALONE, Shard, Split
from dgpp.models.sources import Depthwise, Linear, PlannedWeights, Vector, WeightSource
from dgpp.models.tables import RESIDENT, Table, Tables
from kernels_numba.backend import Backend, Matrix, Tensor
from kernels_numba.weights import DUMMY_DEVIATION, Form, dummy_part


class DummyWeights(WeightSource):
    """Seeded random parameters made by the backend from shapes alone; norms are near one. What
    ranks hold alike is alike; their parts of the rest belong to no common whole."""

    def __init__(
        self,
        backend: Backend,
        shard: Shard = ALONE,
        tables: Tables = RESIDENT,
        seed: int = 0,
        forms: ModelForms = AS_STORED,
    ) -> None:
        self.shard = shard
        self.tables = tables
        self._backend = backend
        self._forms = forms
        self._seeds = count(seed << 32)

    def matrix(self, item: str, linears: Sequence[Linear]) -> Matrix:
        held = self._forms.held(item, linears[0].format.form)
        taken = [linear.own(self.shard, held).taken for linear in linears]
        every, columns = [rows for rows, _ in taken], taken[0][1]
        rows = sum(every)
        seed = next(self._seeds)
        if linears[0].split is not Split.NONE:
            seed += self.shard.rank << 24
        if held is Form.BF12:
            return self._backend.matrix(packed([dummy_part(Form.BF16, rows, columns, seed)]))
        return self._backend.dummy(held, rows, columns, seed, math.gcd(*every))

    def _values(self, name: str, size: int) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng(next(self._seeds))
        noise = rng.standard_normal(size, np.float32) * np.float32(DUMMY_DEVIATION)
        return noise + np.float32(1.0) if name.endswith("norm.weight") else noise

    def values(self, item: str, vector: Vector) -> Tensor:
        return self._backend.vector(self._values(vector.name, math.prod(vector.shape)))

    def depthwise(self, item: str, kernels: Sequence[Depthwise], taps: int) -> Tensor:
        own = sum(kernel.own(self.shard) for kernel in kernels)
        return self._backend.vector(self._values(kernels[0].name, taps * own).reshape(taps, own))

    def joined(self, item: str, names: Sequence[tuple[str, int]]) -> Tensor:
        parts = [self._values(name, self.shard.part(size, name)) for name, size in names]
        return self._backend.vector(np.concatenate(parts))

    def table(self, item: str, table: Table) -> Any:
        mapped = self.tables.mapped
        rows = table.rows if mapped else table.span[1]
        return extended(self._backend).dummy_table(
            table.format.form, rows, table.columns, next(self._seeds), mapped=mapped
        )

    def integers(self, item: str, name: str, shape: tuple[int, int], limit: int) -> Tensor:
        rows, columns = shape
        first = np.random.default_rng(next(self._seeds)).integers(0, limit, (rows, 1))
        values = (first + np.arange(columns)) % limit
        return extended(self._backend).integers(values.astype(np.int32))

    def unloaded(self) -> WeightSource:
        return PlannedWeights(self.shard, self.tables, self._forms)
