"""Finds a table in a checkpoint: its own, or the one that holds the tables of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.checkpoint.binding import Binding, bind_matrix
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import to_float32
from dgpp.checkpoint.scales import require_numbers, scales_of
from dgpp.errors import CheckpointError
from dgpp.models.account import Account
from dgpp.models.tables import Table
from kernels_numba.weights import Part

Array = npt.NDArray[Any]
SAMPLE_ROWS = 64
"""Rows at both ends of a shard by which ranks find out that they map the same one."""


@dataclass(frozen=True, slots=True)
class BoundShard:
    """Rows of a table, the tensor of their codes (and of their scales, "" where they have none) and
    where that is."""

    tensor: str
    scales: str
    part: Part
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class BoundTable:
    """A table's shards in order, and the small tensors beside them."""

    shards: tuple[BoundShard, ...]
    beside: tuple[Array, ...]


def _codes_of(table: Table, name: str, rows: int) -> str:
    """The tensor that holds the codes of one of the table's matrices."""
    return table.format.tensors(rows, table.columns)[0].name_of(name)


def holds_table(binding: Binding, table: Table) -> bool:
    """Whether the checkpoint has the table's first rows."""
    return any(
        binding.has(_codes_of(table, *table.stacked(prefix)[0])) for prefix in table.prefixes
    )


def holds_some(binding: Binding, table: Table) -> bool:
    """Whether the checkpoint has any tensor of the table's rows, so that it is to have them all."""
    return any(
        binding.has(tensor.name_of(name))
        for prefix in table.prefixes
        for name, rows in table.stacked(prefix)
        for tensor in table.format.tensors(rows, table.columns)
    ) or any(
        bool(table.scale) and binding.has(f"{prefix}.{table.matrix}.{table.scale}")
        for prefix in table.prefixes
    )


def _prefix_in(binding: Binding, table: Table) -> str:
    """Which of the table's names the checkpoint uses; the first where it has nothing of it."""
    for prefix in table.prefixes:
        codes = _codes_of(table, *table.stacked(prefix)[0])
        names = (codes, *(f"{prefix}.{name}" for name, _ in table.constants))
        if any(binding.has(name) for name in names):
            return prefix
    return table.prefixes[0]


def bind_constants(binding: Binding, table: Table) -> list[Array]:
    """What rows are found by, as the checkpoint has it beside the table or in its place. Raises
    CheckpointError where config.json makes something else of it."""
    prefix, taken = _prefix_in(binding, table), []
    for name, wanted in table.constants:
        full = f"{prefix}.{name}"
        found = binding.take(full, (len(wanted),), ("I64",))
        if found.tolist() != list(wanted):
            raise CheckpointError(
                f"{binding.checkpoint.directory}: tensor {full} is {found.tolist()}, config.json "
                f"makes it {list(wanted)}"
            )
        taken.append(found)
    return taken


def bind_table(own: Binding, elsewhere: Binding | None, table: Table) -> BoundTable:
    """The table from `own`, or from `elsewhere` where that is given. Raises CheckpointError where
    it is missing, or where either checkpoint finds rows in another way."""
    beside, binding = bind_constants(own, table), own
    if elsewhere is not None:
        own.ignore(f"{_prefix_in(own, table)}.{table.matrix}.*")
        bind_constants(elsewhere, table)
        binding = elsewhere
    prefix = _prefix_in(binding, table)
    stacked = table.stacked(prefix)
    if not holds_table(binding, table):
        raise CheckpointError(
            f"{binding.checkpoint.directory}: tensor {_codes_of(table, *stacked[0])} is missing; "
            "engine.ngram_table_model names a checkpoint that holds such a table"
        )
    scale = None
    if table.scale:
        name = f"{prefix}.{table.matrix}.{table.scale}"
        beside.append(binding.take(name, (1,), ("BF16", "F32")))
        scale = to_float32(beside[-1])
        if not np.isfinite(scale).all():
            raise CheckpointError(f"tensor {name} is {scale[0]}, not a number")
    shards = []
    for name, rows in stacked:
        arrays = bind_matrix(binding, name, rows, table.columns, table.format)
        (part,) = table.format.parts(name, arrays)
        if scale is not None:
            part = replace(part, scale=np.broadcast_to(scale, (rows, 1)))
        scales = scales_of(table.format, name, rows, table.columns)
        codes = _codes_of(table, name, rows)
        shards.append(BoundShard(codes, scales, part, binding.checkpoint))
    return BoundTable(tuple(shards), tuple(beside))


def rows_within(parts: Sequence[Part], first: int, count: int) -> list[Part]:
    """Rows first … first + count − 1 of the stacked `parts`."""
    found, at = [], 0
    for part in parts:
        begin, end = max(first - at, 0), min(first + count - at, part.rows)
        if begin < end:
            found.append(part.cut_rows(begin, end - begin))
        at += part.rows
    return found


def own_rows(shards: Sequence[BoundShard], first: int, count: int) -> list[Part]:
    """Rows first … first + count − 1 of the table. Raises CheckpointError naming the tensor where a
    scale of theirs is no number."""
    found, at = [], 0
    for shard in shards:
        for part in rows_within([shard.part], first - at, count):
            if shard.scales:
                require_numbers(part, shard.scales)
            found.append(part)
        at += shard.part.rows
    return found


def account_table(
    account: Account, shards: Sequence[BoundShard], own: Sequence[Part], *, mapped: bool
) -> None:
    """What this rank has read of the table: its own rows, or, of one that is mapped and may never
    be read whole, a few at the ends of each shard, which must be the same on every rank."""
    if not mapped:
        whole = sum(shard.part.data.nbytes for shard in shards)
        account.add(shards[0].tensor, whole, sum(part.data.nbytes for part in own), None)
        return
    for shard in shards:
        data = shard.part.data
        account.add(shard.tensor, 0, 0, [data[:SAMPLE_ROWS], data[-SAMPLE_ROWS:]])
