"""What one rank of a world holds of a model: which rows and columns of each matrix."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dgpp.errors import ConfigError

VOCABULARY_STEP = 32
"""Slices of the vocabulary begin at whole words of a mask."""


class Split(enum.Enum):
    """How ranks share a matrix: not at all, by equal rows, by equal columns, by the vocabulary, or
    as its own row ranges say, which are one rank's already."""

    NONE = "none"
    TAKEN = "taken"
    ROWS = "rows"
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank` of `world`. `split_embedding` keeps only a slice of the embedding too."""

    rank: int = 0
    world: int = 1
    split_embedding: bool = False

    def part(self, extent: int, what: str) -> int:
        """One rank's share of `extent`, which is the size of `what`. Raises ConfigError where the
        ranks' shares would not be equal."""
        if extent % self.world:
            raise ConfigError(f"world_size: {self.world} does not divide {what} ({extent})")
        return extent // self.world

    def span(self, split: Split, extent: int, what: str) -> range:
        """The rows or columns of this rank, of `extent` in all."""
        if split is Split.NONE:
            return range(extent)
        if split is Split.VOCABULARY:
            return self.vocabulary(extent)
        count = self.part(extent, what)
        return range(self.rank * count, (self.rank + 1) * count)

    def vocabulary(self, size: int) -> range:
        """The ids of this rank: whole steps of VOCABULARY_STEP, one more on the first ranks where
        they cannot be equal. Raises ConfigError where a rank would have none."""
        steps = -(-size // VOCABULARY_STEP)
        if steps < self.world:
            raise ConfigError(
                f"world_size: config.json's vocab_size of {size} is {steps} slices of "
                f"{VOCABULARY_STEP}, too few for {self.world} ranks"
            )
        each, more = divmod(steps, self.world)
        first = self.rank * each + min(self.rank, more)
        last = first + each + (self.rank < more)
        return range(first * VOCABULARY_STEP, min(last * VOCABULARY_STEP, size))


ALONE = Shard()
