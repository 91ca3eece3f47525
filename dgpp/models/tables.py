"""Large tables of rows: how a checkpoint stores one, and where its rows are read at run time."""

from __future__ import annotations

from dataclasses import dataclass

from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.checkpoint.formats import Format


@dataclass(frozen=True, slots=True)
class Table:
    """A table of `rows` rows of `columns` values.

    prefixes   names that a checkpoint may give what holds it; one of them is there
    matrix     its matrix under that name; with `shards` above 0, that many of equal rows in
               `matrix`.shard_0 … instead
    scale      tensor `matrix`.`scale` [1] that multiplies every value; "" for none
    constants  integers [n] beside it by name: what rows are found by, which must be these
    held       first row and number of rows that this rank keeps in memory; None: all
    """

    prefixes: tuple[str, ...]
    matrix: str
    rows: int
    columns: int
    format: Format
    shards: int = 0
    scale: str = ""
    constants: tuple[tuple[str, tuple[int, ...]], ...] = ()
    held: tuple[int, int] | None = None

    def stacked(self, prefix: str) -> list[tuple[str, int]]:
        """Name and rows of its matrices under `prefix`, in order."""
        name = f"{prefix}.{self.matrix}"
        if not self.shards:
            return [(name, self.rows)]
        each = self.rows // self.shards
        return [(f"{name}.shard_{shard}", each) for shard in range(self.shards)]

    @property
    def span(self) -> tuple[int, int]:
        """First row and number of rows that this rank keeps in memory."""
        return self.held or (0, self.rows)


@dataclass(frozen=True, slots=True)
class Tables:
    """Where tables are: copied into memory, or `mapped` and read from their files; in the model's
    own checkpoint, or in `checkpoint`."""

    mapped: bool = False
    checkpoint: Checkpoint | None = None


RESIDENT = Tables()
