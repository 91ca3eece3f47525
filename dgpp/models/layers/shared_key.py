"""Attention whose heads share one row per position, key and value at once: a window, and entries.

Queries come through a low rank. Trailing values turn by the position, and what a query sums of them
is turned back. The heads' sums go through a projection per group of heads, then one of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgpp.checkpoint.formats import Format
from dgpp.models.layers.attention import RING_SLACK
from dgpp.models.layers.extended import extended
from dgpp.models.layers.workspace import Workspace
from dgpp.models.shard import Shard, Split
from dgpp.models.sources import Linear, WeightSource
from dgpp.state.declaration import Ring
from kernels_numba.backend import Backend, Norm, Rows, Tensor
from kernels_numba.extended import Entries, EntryAttention, Rotation, Rounding


@dataclass(frozen=True, slots=True)
class SharedKeyShape:
    """`width` values of a head and of a row, `rotated` of them turning; `groups` of heads have a
    projection to `group_rank` values each. `norm_heads`: queries are divided by each head's root
    mean square. `rounding` is of the rows. `floored`: no window reaches behind the tail of its slot
    (`Rows.floors`)."""

    hidden: int
    heads: int
    width: int
    rotated: int
    q_rank: int
    groups: int
    group_rank: int
    window: int
    eps: float
    norm_heads: bool = False
    rounding: Rounding | None = None
    floored: bool = False

    def own(self, shard: Shard) -> SharedKeyShape:
        """One rank's heads and groups; the rows are every rank's."""
        return replace(
            self,
            heads=shard.part(self.heads, "config.json's num_attention_heads"),
            groups=shard.part(self.groups, "config.json's o_groups"),
        )

    @property
    def attended(self) -> int:
        return self.heads * self.width

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Activations of a step, for `WorkspaceShape.extra`; `self` is a rank's own shape."""
        return (
            ("query rank", self.q_rank),
            ("shared queries", self.heads * self.width),
            ("shared raw", self.width),
            ("shared row", self.width),
            ("group sums", self.groups * self.group_rank),
        )

    def ring(self, name: str) -> Ring:
        return Ring(f"{name} window", self.window + RING_SLACK, self.width)


class SharedKeyAttention:
    """x += wo_b(wo_a(attention(norm(x)))); tensors under `name` but for `norm`. In a world a rank
    has its share of the heads and of the groups."""

    def __init__(
        self, source: WeightSource, name: str, norm: str, shape: SharedKeyShape, stored: Format
    ) -> None:
        self.shape = shape.own(source.shard)
        hidden, width, eps = shape.hidden, shape.width, shape.eps

        def matrix(part: str, rows: int, columns: int, split: Split = Split.NONE) -> Tensor:
            linear = Linear(f"{name}.{part}", rows, columns, stored, split=split)
            return source.matrix("attention", [linear])

        def weight(module: str, size: int) -> Norm:
            return Norm(source.vector("norms", f"{module}.weight", size), eps)

        inner = shape.groups * shape.group_rank
        self.norm = weight(norm, hidden)
        self.query_norm = weight(f"{name}.q_norm", shape.q_rank)
        self._row_norm = weight(f"{name}.kv_norm", width)
        self._down = matrix("wq_a", shape.q_rank, hidden)
        self._up = matrix("wq_b", shape.heads * width, shape.q_rank, Split.ROWS)
        self._row = matrix("wkv", width, hidden)
        self._grouped = matrix("wo_a", inner, shape.attended // shape.groups, Split.ROWS)
        self._output = matrix("wo_b", hidden, inner, Split.COLUMNS)
        self._sinks = source.joined("attention", [(f"{name}.attn_sink", shape.heads)])

    def prepare(self, ops: Backend, angles: Tensor, ring: object) -> None:
        """Give the layer its rotary table and its ring, once."""
        shape = self.shape
        self._ops, self._ring = extended(ops), ring
        at, half = shape.width - shape.rotated, shape.rotated // 2
        self._turn = Rotation(angles, shape.heads, shape.width, at, half, pairs=True)
        self._turn_row = replace(self._turn, heads=1)
        self._attention = EntryAttention(
            shape.heads,
            shape.width,
            shape.width**-0.5,
            shape.window,
            self._sinks,
            floored=shape.floored,
        )
        self._block = replace(self._attention, both_ways=True)

    def project(self, rows: Rows, work: Workspace) -> None:
        """From work.x: work.normed, its query rank (`ranked`), queries and the rows' own row."""
        ops, shape, queries = self._ops, self.shape, work.extra["shared queries"]
        ops.norm(rows, work.x, self.norm, work.normed)
        ops.linear(rows, work.normed, self._down, self.ranked(work))
        ops.linear(rows, self.ranked(work), self._up, queries, norm=self.query_norm)
        if shape.norm_heads:
            ops.norm_heads(rows, queries, shape.heads, shape.eps)
        ops.rotate(rows, queries, self._turn)
        self._make_row(rows, work, work.normed)

    def ranked(self, work: Workspace) -> Tensor:
        """What queries are made of, after `query_norm`."""
        return work.extra["query rank"]

    def attend(
        self, rows: Rows, work: Workspace, entries: Entries | None, *, block: bool = False
    ) -> None:
        """Attention of what `project` made, and its output. Rows of a `block` see one another both
        ways and are not kept."""
        ops, held, fold = self._ops, work.extra, work.fold
        queries, row, sums = held["shared queries"], held["shared row"], held["group sums"]
        attention = self._block if block else self._attention
        ops.attend_entries(rows, queries, attention, row, self._ring, entries, work.attended)
        if not block:
            ops.ring_write(rows, row, self._ring)
        ops.rotate(rows, work.attended, self._turn, inverse=True)
        ops.grouped_linear(rows, work.attended, self._grouped, self.shape.groups, sums)
        ops.linear(rows, sums, self._output, fold.target, add=fold.add)
        fold.finish(rows)

    def extend(self, rows: Rows, work: Workspace, context: Tensor) -> None:
        """`context` rows become rows of the window, which are kept and attend to nothing."""
        self._make_row(rows, work, context)
        self._ops.ring_write(rows, work.extra["shared row"], self._ring)

    def _make_row(self, rows: Rows, work: Workspace, source: Tensor) -> None:
        ops, shape = self._ops, self.shape
        raw, row = work.extra["shared raw"], work.extra["shared row"]
        ops.linear(rows, source, self._row, raw)
        ops.norm(rows, raw, self._row_norm, row)
        ops.rotate(rows, row, self._turn_row)
        if shape.rounding is not None:
            ops.round_rows(rows, row, shape.rounding)
