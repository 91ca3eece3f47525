"""How rows of cached context are packed: values in a byte or half of one, and what scales them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

FP4_GROUP = 16
"""Values that share an e4m3 scale."""


class RowCode(enum.IntEnum):
    """How a row's values are kept: as the backend's own floats, in e4m3, or in e2m1."""

    FLOAT = 0
    FP8 = 1
    FP4 = 2


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Where the parts of a row of `width` values lie; its last `plain` values stay in bf16.

    FP8  [e4m3 codes | float32 scale | bf16]                value = code · scale
    FP4  [e2m1 codes | e4m3 scales | float32 factor | bf16]  value = code · (scale · factor)

    FP8: scale = max |x| / 448. FP4: factor = max |x| / (6 · 448), scale = the e4m3 nearest to
    max |x| of its sixteen values / (6 · factor); both are 1 where all is 0. Codes are the nearest,
    of two the even one. Codes are padded to whole vectors of sixteen, rows to four bytes.
    """

    code: RowCode
    width: int
    plain: int = 0

    @property
    def coded(self) -> int:
        """Values that have codes."""
        return self.width - self.plain

    @property
    def groups(self) -> int:
        return -(-self.coded // FP4_GROUP)

    @property
    def scale_at(self) -> int:
        """Bytes before the scale of FP8, or the scales of FP4."""
        padded = self.groups * FP4_GROUP
        return padded if self.code is RowCode.FP8 else padded // 2

    @property
    def factor_at(self) -> int:
        """Bytes before FP4's factor, which four divide; FP8 has none."""
        return self.scale_at + (-(-self.groups // 4) * 4 if self.code is RowCode.FP4 else 0)

    @property
    def plain_at(self) -> int:
        return self.factor_at + 4

    @property
    def bytes(self) -> int:
        return -(-(self.plain_at + 2 * self.plain) // 4) * 4
