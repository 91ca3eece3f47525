"""Operations beyond grouped-query attention and experts, which not every backend has yet.

Many reach back into a row's own request: windows, convolutions, recurrences. Rows of a slot stand
together in a step, in the order of their positions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kernels_numba.backend import (
    Attention,
    Backend,
    I32Array,
    Logits,
    Matrix,
    Norm,
    Plane,
    Rows,
    Tensor,
)
from kernels_numba.streams import StreamBackend
from kernels_numba.tables import TableBackend


@dataclass(frozen=True, slots=True)
class Convolution:
    """Causal depthwise convolution: `weight` [taps, channels], the oldest position first."""

    weight: Tensor
    channels: int
    taps: int
    dilation: int = 1
    silu: bool = True

    @property
    def history(self) -> int:
        """Positions before its own that a row reads."""
        return (self.taps - 1) * self.dilation


@dataclass(frozen=True, slots=True)
class BlockConvolution:
    """Convolution over a row and the one before it in the step, with coefficients of the rows' own.

    base [2 sides, 2 taps, channels], the own row first; coefficients of a row
    [2 sides, 2 taps, channels / group] are added to it.
    """

    base: Tensor
    channels: int
    group: int


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Heads of a gated delta rule; a key head serves value_heads / key_heads value heads.

    `channels` decays per value head: 1, or one per key channel.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    channels: int = 1

    @property
    def qkv_width(self) -> int:
        """Values of a row [q | k | v]."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary turning of `2 · half` values of each of `heads`, `at` values into a head of `width`.

    `pairs`: values 2i and 2i + 1 turn together, else i and half + i. Rows turn by their positions,
    or by the first of their group of `every`.
    """

    angles: Tensor
    heads: int
    width: int
    at: int
    half: int
    pairs: bool = False
    every: int = 1


class Code(enum.IntEnum):
    """How a block of cached values is kept: e4m3 or e2m1 codes, times a power of two (E8M0) or a
    number of e4m3.

    The power is the least that brings the block's largest value within the codes; e4m3 scales are
    the largest value over six, rounded. Codes are the nearest, ties to the even one.
    """

    FP8_E8M0 = 0
    FP4_E8M0 = 1
    FP4_E4M3 = 2


@dataclass(frozen=True, slots=True)
class Rounding:
    """What the first `width` values of a row are rounded to, `block` values at a time."""

    code: Code
    width: int
    block: int


@dataclass(frozen=True, slots=True)
class Pooling:
    """One entry per group of `every` tokens: per channel the values of its slots, weighted by the
    softmax of their gates + `bias`.

    A token's row is [values `parts` × width | gates `parts` × width], bias [every, parts × width].
    The last part stands for the token's own group, the one before for the group after it: an entry
    pools the tokens of its own group and of parts − 1 groups before, as far as there are.
    """

    width: int
    every: int
    parts: int
    bias: Tensor

    @property
    def history(self) -> int:
        """Tokens before the last that an entry is made of."""
        return self.parts * self.every - 1


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """`heads` queries of `width` against one row per position, whose first `value_dim` values are
    what is summed."""

    heads: int
    width: int
    value_dim: int
    scale: float


@dataclass(frozen=True, slots=True)
class EntryAttention:
    """`heads` queries of `width` values, whole vectors, against rows that are key and value at
    once: the last `window` positions, the query's own included, and entries of several tokens each.

    `sinks` float32 [heads] are logits of keys without values. `both_ways`: a row sees all rows of
    its slot in this step, and the last `window` positions before them. `floored`: no window reaches
    behind the tail of its slot (`Rows.floors`).
    """

    heads: int
    width: int
    scale: float
    window: int
    sinks: Tensor | None = None
    both_ways: bool = False
    floored: bool = False


@dataclass(frozen=True, slots=True)
class Entries:
    """What a row attends to beside its window: the entries of `store`, one per `every` tokens and
    there once these are, all or those selected."""

    store: Any
    every: int
    selection: Selection | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """Heads that score cached keys: Σ_h w_h · weight_scale · relu(scale · q_h · k); the `top` best
    are attended to. There is a key per `every` tokens, visible once they are all there."""

    heads: int
    dim: int
    top: int
    scale: float
    weight_scale: float
    every: int = 1


class Selection:
    """What each row of a step attends to: indices int32 [capacity, top] ascending, counts int32
    [capacity]; beyond a row's count the indices mean nothing."""

    handle: Any = None

    def __init__(self, capacity: int, top: int) -> None:
        self.indices: I32Array = np.zeros((capacity, top), np.int32)
        self.counts: I32Array = np.zeros(capacity, np.int32)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Blocks of `size` keys: the best by their best key, the newest always among them. `given`:
    they were chosen before."""

    blocks: Selection
    size: int
    given: bool


@runtime_checkable
class ExtendedBackend(Backend, StreamBackend, TableBackend, Protocol):
    """A backend that has these operations too."""

    def take_rows(self, matrix: Matrix, index: I32Array) -> Matrix:
        """A matrix of rows `index` of another one, in this order, copied."""

    def spread_logits(self, few: Logits, count: int, ids: I32Array, out: Logits) -> None:
        """out[r, ids[i]] = few[r, i] in the first `count` rows, −∞ elsewhere in them."""

    def split_rows(
        self, rows: Rows, qkv: Tensor, attention: Attention, queries: Tensor, kv: Tensor
    ) -> None:
        """As `rotary_cache_write`, but k and v go to the rows of `kv`, side by side."""

    def attend_window(
        self,
        rows: Rows,
        queries: Tensor,
        attention: Attention,
        kv: Tensor,
        ring: Any,
        out: Tensor,
    ) -> None:
        """out[r] = attention of row r over the last `attention.window` positions of its slot: those
        of this step from `kv`, earlier ones from `ring`."""

    def ring_write(self, rows: Rows, values: Tensor, ring: Any) -> None:
        """Row r of `values` becomes the row of its position in its slot's ring."""

    def causal_conv(
        self, rows: Rows, x: Tensor, convolution: Convolution, ring: Any, out: Tensor
    ) -> None:
        """out[r] = the convolution of x at row r's position and those before it; of what is not in
        this step `ring` holds the inputs, and `ring_write` keeps these for the next."""

    def delta_gates(
        self, rows: Rows, ab: Tensor, log_rate: Tensor, bias: Tensor, decay: Tensor, beta: Tensor
    ) -> None:
        """Per head of rows [a | b]: beta = σ(b), decay = exp(−exp(log_rate) softplus(a + bias))."""

    def gated_delta(
        self,
        rows: Rows,
        qkv: Tensor,
        rule: DeltaRule,
        decay: Tensor,
        beta: Tensor,
        state: Any,
        out: Tensor,
    ) -> None:
        """out[r] = outputs of all value heads; `state` advances by the rows of each slot.

        A slot's state is value_heads × key_dim rows of value_dim, zero before position 0.
        """

    def gated_norm(
        self,
        rows: Rows,
        x: Tensor,
        gate: Tensor,
        norm: Norm,
        heads: int,
        out: Tensor,
        *,
        silu: bool,
    ) -> None:
        """out[r, h] = norm(x[r, h]) · act(gate[r, h]) for each of `heads`; act: silu or sigmoid."""

    def block_conv(
        self,
        rows: Rows,
        x: Tensor,
        coefficients: Tensor,
        convolution: BlockConvolution,
        side: int,
        out: Tensor,
        *,
        add: bool,
    ) -> None:
        """out[r] = (out[r] +) the convolution of x by its `side`; nothing before a slot's first row
        of the step."""

    def pack_rows(self, x: Tensor, index: I32Array) -> None:
        """x[i] = x[index[i]], for ascending `index` on the host."""

    def unpack_rows(self, x: Tensor, index: I32Array) -> None:
        """x[index[i]] = x[i], for ascending `index` on the host; other rows mean nothing."""

    def copy(self, rows: Rows, x: Tensor, out: Tensor, *, at: int = 0) -> None:
        """out[r, at …] = x[r]."""

    def gate(self, rows: Rows, x: Tensor, gate: Tensor, at: int) -> None:
        """x[r] *= σ(gate[r, at …]), as many values as x has."""

    def selection(self, top: int) -> Selection:
        """Room for what the rows of a step attend to."""

    def read_selection(self, selection: Selection, count: int) -> I32Array:
        """int32 [count, top] on the host: the first rows' indices, -1 beyond their counts."""

    def norm_part(self, rows: Rows, x: Tensor, norm: Norm, out: Tensor) -> None:
        """out[r, :n] = norm(x[r, :n]), n being the norm's own width, which is whole vectors."""

    def layer_norm(
        self, rows: Rows, x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor
    ) -> None:
        """out[r] = (x[r] − mean) / √(variance + eps) · weight + bias; out may be x."""

    def rotate(self, rows: Rows, x: Tensor, rotation: Rotation, *, inverse: bool = False) -> None:
        """Turn parts of x's heads in place, by the rows' positions; `inverse` turns them back."""

    def copy_heads(
        self,
        rows: Rows,
        x: Tensor,
        source: tuple[int, int],
        heads: int,
        width: int,
        out: Tensor,
        target: tuple[int, int],
    ) -> None:
        """`width` values of each head, from `source` to `target`: (values per head, values before
        those that are meant)."""

    def store_rows(self, rows: Rows, x: Tensor, store: Any, *, every: int = 1) -> None:
        """Row r of x becomes the row of its position in its slot's blocks of `store`, which has one
        per `every` tokens: the last of them leaves it."""

    def norm_heads(self, rows: Rows, x: Tensor, heads: int, eps: float) -> None:
        """x[r, h] /= √(mean(x[r, h]²) + eps) for each of `heads`, which are whole vectors."""

    def round_rows(self, rows: Rows, x: Tensor, rounding: Rounding) -> None:
        """x[r] as a cache of codes would keep it, in place."""

    def hadamard(self, rows: Rows, x: Tensor, heads: int) -> None:
        """x[r, h] times the Hadamard matrix over its root, in place; heads of a power of two."""

    def attend_entries(
        self,
        rows: Rows,
        queries: Tensor,
        attention: EntryAttention,
        kv: Tensor,
        ring: Any,
        entries: Entries | None,
        out: Tensor,
    ) -> None:
        """out[r] = attention of row r's heads over its window and over `entries`: positions of this
        step from `kv`, earlier ones from `ring`."""

    def integers(self, values: I32Array) -> Tensor:
        """Parameters that are whole numbers."""

    def grouped_linear(
        self, rows: Rows, x: Tensor, matrix: Matrix, groups: int, out: Tensor
    ) -> None:
        """out[r, g] = M_g · x[r, g]: rows of the matrix and values of x shared out to `groups`."""

    def grouped_sum(
        self,
        rows: Rows,
        x: Tensor,
        stride: int,
        matrix: Matrix,
        groups: int,
        out: Tensor,
        width: int,
    ) -> None:
        """out[r, g] = M_gᵀ x[r, g]; groups of x are `stride` values apart, those of out `width`."""

    def index_select(
        self,
        rows: Rows,
        queries: Tensor,
        weights: Tensor,
        index: Index,
        keys: Any,
        selection: Selection,
        *,
        candidates: Candidates | None = None,
    ) -> None:
        """Per row the best keys of its slot up to its own position, the lower first of equals.
        `weights` are rows, or one vector for all of them.

        With `candidates` the best blocks of keys are left there, or only keys of those blocks are
        taken, which a layer before left of the same keys."""

    def attend_selected(
        self,
        rows: Rows,
        queries: Tensor,
        attention: Attention,
        plane: Plane,
        selection: Selection,
        out: Tensor,
    ) -> None:
        """As `attend_paged`, over the positions that were selected."""

    def attend_latent(
        self,
        rows: Rows,
        queries: Tensor,
        attention: LatentAttention,
        store: Any,
        selection: Selection | None,
        out: Tensor,
    ) -> None:
        """out[r] = attention of row r's heads over the rows of its slot that were selected, or over
        all up to its own position."""

    def channel_gates(
        self,
        rows: Rows,
        f: Tensor,
        b: Tensor,
        log_rate: Tensor,
        bias: Tensor,
        bound: float,
        decay: Tensor,
        beta: Tensor,
    ) -> None:
        """Per key channel decay = exp(bound σ(exp(log_rate) (f + bias))), per head beta = σ(b)."""

    def pool_rows(self, rows: Rows, x: Tensor, pooling: Pooling, ring: Any, out: Tensor) -> None:
        """out[r] = the entry that row r completes; the others mean nothing. Earlier tokens' rows of
        x are of this step or in `ring`, and `ring_write` keeps these for the next."""

    def mean_rows(self, rows: Rows, x: Tensor, every: int, ring: Any, out: Tensor) -> None:
        """out[r] = the mean of x over the `every` tokens that row r completes; otherwise as
        `pool_rows`."""

    def unfold(self, rows: Rows, pools: Selection, every: int, out: Selection) -> None:
        """Positions of the pools selected, then those after the last whole pool."""
