"""Entries that stand for groups of tokens: pooled from what the tokens leave, normed, turned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgpp.models.layers.attention import RING_SLACK
from dgpp.models.layers.workspace import Workspace
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import PagedRows, Ring
from kernels_numba.backend import Norm, Rows, Tensor
from kernels_numba.extended import ExtendedBackend, Pooling, Rotation, Rounding


@dataclass(frozen=True, slots=True)
class CompressorShape:
    """An entry of `width` values per `every` tokens.

    name      of its activations in a step
    parts     groups that an entry is made of, as in `Pooling`
    biased    gates have a bias for each place in a group
    rotated   trailing values that turn in pairs, by the group's first position
    rounding  what entries are rounded to before they are kept
    evened    before they are rounded, entries are multiplied by the Hadamard matrix
    """

    name: str
    hidden: int
    width: int
    every: int
    rotated: int
    eps: float
    parts: int = 1
    biased: bool = False
    rounding: Rounding | None = None
    evened: bool = False

    @property
    def token(self) -> int:
        """Values that a token leaves: [values | gates], the values alone where each has an entry
        of its own."""
        return self.width if self.every == 1 else 2 * self.parts * self.width

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`."""
        held = ((f"{self.name} token", self.token), (f"{self.name} entry", self.width))
        return held if self.every == 1 else (*held, (f"{self.name} pooled", self.width))

    def entries(self, name: str) -> PagedRows:
        return PagedRows(f"{name} {self.name}", self.width, self.every)

    def ring(self, name: str) -> Ring:
        """What the last tokens left; none is needed where each has an entry of its own."""
        count = self.parts * self.every - 1 + RING_SLACK
        return Ring(f"{name} {self.name} tokens", count, self.token, wide=True)


class Compressor:
    """Tensors under `name`: wkv, norm, and wgate and ape where a token has no entry of its own."""

    def __init__(self, source: WeightSource, name: str, shape: CompressorShape) -> None:
        self.shape = shape
        width, grouped = shape.parts * shape.width, shape.every > 1
        sides = ("wkv", "wgate") if grouped else ("wkv",)
        tokens = [Linear(f"{name}.{side}", width, shape.hidden) for side in sides]
        self._tokens = source.matrix("compressor", tokens)
        norm = source.vector("norms", f"{name}.norm.weight", shape.width)
        self._norm = Norm(norm, shape.eps)
        self._bias: Tensor | None = None
        if shape.biased:
            sizes = (shape.every, width)
            self._bias = source.vector("compressor", f"{name}.ape", sizes, ("F32",))

    def prepare(self, ops: ExtendedBackend, angles: Tensor, ring: object) -> None:
        """Give the compressor its rotary table and its ring, once."""
        shape = self.shape
        self._ops, self._ring = ops, ring
        bias = self._bias
        if bias is None:
            bias = ops.vector(np.zeros((shape.every, shape.parts * shape.width), np.float32))
        self._pooling = Pooling(shape.width, shape.every, shape.parts, bias)
        at, half = shape.width - shape.rotated, shape.rotated // 2
        self._turn = Rotation(angles, 1, shape.width, at, half, pairs=True, every=shape.every)

    def forward(self, rows: Rows, work: Workspace, normed: Tensor) -> Tensor:
        """The normed entries of rows that complete one, not turned yet; others mean nothing."""
        ops, shape, held = self._ops, self.shape, work.extra
        pooled = tokens = held[f"{shape.name} token"]
        entry = held[f"{shape.name} entry"]
        ops.linear(rows, normed, self._tokens, tokens)
        if shape.every > 1:
            pooled = held[f"{shape.name} pooled"]
            ops.pool_rows(rows, tokens, self._pooling, self._ring, pooled)
            ops.ring_write(rows, tokens, self._ring)
        ops.norm_part(rows, pooled, self._norm, entry)
        return entry

    def keep(self, rows: Rows, entry: Tensor, store: object) -> None:
        """Turn and round the entries, in place, and put them to their places in `store`."""
        ops, shape = self._ops, self.shape
        ops.rotate(rows, entry, self._turn)
        if shape.rounding is not None:
            if shape.evened:
                ops.hadamard(rows, entry, 1)
            ops.round_rows(rows, entry, shape.rounding)
        ops.store_rows(rows, entry, store, every=shape.every)
