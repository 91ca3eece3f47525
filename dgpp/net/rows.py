"""Rows of one rank that are to be summed over all ranks."""

from __future__ import annotations

import msgspec


class Sum(msgspec.Struct, frozen=True, gc=False):
    """out[r] = Σ over ranks of partial[r] (+ out[r]) for `rows` rows of `width` values, `wire`
    bytes each on their way; `partial` and `out` are addresses of float32 rows."""

    rows: int
    width: int
    wire: int
    partial: int
    partial_stride: int
    out: int
    out_stride: int
    add: bool

    @property
    def bytes(self) -> int:
        return self.rows * self.width * self.wire

    def piece(self, first: int, rows: int) -> Sum:
        """`rows` of them from row `first` on."""
        if rows == self.rows:
            return self
        return Sum(
            rows, self.width, self.wire,
            self.partial + first * self.partial_stride, self.partial_stride,
            self.out + first * self.out_stride, self.out_stride, self.add,
        )  # fmt: skip
