"""The operations a forward pass is written against, and the shapes that name their arguments.

A model sees opaque tensors, matrices and cache planes of its backend and never an array library.
All rows of a step, of any request and phase, stand in one ragged batch: row r belongs to slot
`rows.slots[r]` at position `rows.positions[r]`. Operations read and write the first
`rows.count` rows of their tensors.

Exactness: an operation's result for a row depends on that row, its weights and its own keys only,
never on the number of rows, its place among them, its slot or its blocks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from kernels_numba.packed_rows import RowCode
from kernels_numba.picks import Picker
from kernels_numba.weights import Form, Part

Tensor: TypeAlias = Any
"""float32 (CPU) or bf16 (GPU) [capacity, width] activations, or a vector of parameters."""
Matrix: TypeAlias = Any
"""Weights [N, K] in checkpoint form; one or several parts stacked along N."""
Plane: TypeAlias = Any
"""Keys and values of one layer: pool of blocks × heads × block_tokens × head_dim. A Store."""
Logits: TypeAlias = Any
"""float32 [rows, V], where the backend computes."""

F32Array: TypeAlias = npt.NDArray[np.float32]
I32Array: TypeAlias = npt.NDArray[np.int32]


class Rows:
    """What each row of the step is. Written by the engine, read by every operation.

    tokens, positions, slots  int32 [capacity]
    tables                    int32 [slots, table_width]: the cache blocks of each slot, in order
    floors                    int32 [slots]: where the tail of each slot begins, which is all that
                              some layers run of a prompt; 0 where they run all of it
    count                     rows of this step
    handle                    what the backend keeps beside them
    """

    handle: Any = None

    def __init__(self, capacity: int, slots: int, table_width: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.tokens: I32Array = np.zeros(capacity, np.int32)
        self.positions: I32Array = np.zeros(capacity, np.int32)
        self.slots: I32Array = np.zeros(capacity, np.int32)
        self.tables: I32Array = np.zeros((slots, table_width), np.int32)
        self.floors: I32Array = np.zeros(slots, np.int32)


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm: x / √(mean(x²) + eps) · weight."""

    weight: Tensor
    eps: float


HEAD_WIDTH = 32
"""Heads of a row that holds keys and values side by side begin at multiples of it."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Shape of grouped-query attention on this rank, and what is done to q, k and v before it.

    `angles` is the rotary table (`Backend.rotary_table`); `q_norm`, `k_norm` are per-head norms
    or None. Values have `value_dim` (0: as many as keys) and are kept times `value_scale`. `gap`
    values stand between q and k in a row [q | gap | k | v]. A query sees the last `window`
    positions, its own included (0: all). `sinks` float32 [heads] are logits of keys without values.
    `both_ways`: a windowed query also sees the later rows of its slot in this step.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    angles: Tensor
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    value_dim: int = 0
    value_scale: float = 1.0
    gap: int = 0
    window: int = 0
    sinks: Tensor | None = None
    both_ways: bool = False

    @property
    def values(self) -> int:
        """Values of one head's value."""
        return self.value_dim or self.head_dim

    @property
    def key_at(self) -> int:
        """Values of a qkv row before its keys."""
        return self.heads * self.head_dim + self.gap

    @property
    def row_width(self) -> int:
        """Values of a row of keys and values side by side: [heads' keys | heads' values]."""
        return kv_row_width(self.kv_heads, self.head_dim, self.values)


def head_width(dim: int) -> int:
    """A head of `dim` values with its padding."""
    return -(-dim // HEAD_WIDTH) * HEAD_WIDTH


def kv_row_width(kv_heads: int, head_dim: int, value_dim: int) -> int:
    """Values of a row of keys and values side by side."""
    return kv_heads * (head_width(head_dim) + head_width(value_dim))


class Scores(enum.IntEnum):
    """What a router makes of an expert's logit: σ(x), √softplus(x), or its share of Σ exp(x)."""

    SIGMOID = 0
    SQRT_SOFTPLUS = 1
    SOFTMAX = 2


@dataclass(frozen=True, slots=True)
class Routing:
    """A router: the `top` by score + `bias`; weight = score (normalised) · `scale`.

    `table` int32 [V, top] names the experts of each token instead; their weights are still of their
    scores. Without a bias, with a table or with other scores than σ it takes an `ExtendedBackend`.
    """

    gate: Matrix
    bias: Tensor | None
    experts: int
    top: int
    normalise: bool
    scale: float
    scores: Scores = Scores.SIGMOID
    table: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """All experts of a layer: `gate_up` stacks [gate; up] per expert, `down` one per expert;
    `limit` as in `Backend.gated`. With `weigh_inside` a router's weight multiplies what goes into
    `down`, not what comes out."""

    gate_up: Matrix
    down: Matrix
    intermediate: int
    limit: float = 0.0
    weigh_inside: bool = False


@dataclass(frozen=True, slots=True)
class SharedExperts:
    """Experts that every row passes, as one MLP: `gate_up` stacks [gate; up]; `limit` as in
    `Backend.gated`."""

    gate_up: Matrix
    down: Matrix
    limit: float = 0.0


class Routes:
    """A step's expert choices: ids int32 [capacity, top] ascending, weights float32 alike.

    `gaps` float32 [capacity]: how far the last expert chosen stands above the first left out, told
    by the float32 backend alone: what another's rounding may decide the other way.
    """

    handle: Any = None

    def __init__(self, capacity: int, top: int) -> None:
        self.ids: I32Array = np.zeros((capacity, top), np.int32)
        self.weights: F32Array = np.zeros((capacity, top), np.float32)
        self.gaps: F32Array = np.zeros(capacity, np.float32)


class Store(Protocol):
    """Numbered entries of equal size: the blocks of a cache plane, or what each request keeps of
    its own. Copies happen in the order of the calls, with the operations among them."""

    entry_bytes: int

    def copy(self, source: Any, index: int, to: int) -> None:
        """Entry `to` = entry `index` of `source`, a store of the same shape."""

    def clear(self, index: int) -> None:
        """Entry `index` = 0."""

    def read(self, index: int, out: memoryview) -> None:
        """The bytes of entry `index` to `out` on the host, `entry_bytes` long. A transfer: beside
        the steps, behind what the last `Backend.fence_transfers` saw; `finish_transfers` waits."""

    def write(self, index: int, data: memoryview) -> None:
        """Entry `index` = what `read` gave: a transfer too."""


class Backend(Protocol):
    """Named operations over the rows of a step. Made once per engine, called from one thread."""

    name: str

    def begin(self, rows: Rows) -> None:
        """Called once `rows` are written and before any operation reads them, on the thread that
        runs the step. A token below 0 becomes what was last drawn for the row's slot."""

    def record(
        self,
        rows: Rows,
        counts: Sequence[int],
        ceiling: int,
        steps: Sequence[Callable[[], None]],
    ) -> None:
        """Record what each of `steps` enqueues for each of `counts` rows at positions below
        `ceiling`, each of another slot; it may depend on nothing else of `rows`. Nothing where the
        backend replays nothing."""

    def replay(self, rows: Rows, step: int) -> bool:
        """Enqueue what was recorded of step number `step` for `rows`, which have begun; False where
        there is none."""

    def guard(self, doing: str) -> AbstractContextManager[None]:
        """Failures of the device inside become errors that say so and what was done."""

    def notes(self) -> list[str]:
        """What an operator should know of how this backend runs; known after a first step."""

    def rows(self, slots: int, table_width: int) -> Rows:
        """The step's row metadata, for as many rows as the backend was made for."""

    def tensor(self, width: int, *, wide: bool = False) -> Tensor:
        """Activations of `width` values for every row of the step, zero at first.

        `wide` asks for float32 where the backend's own activations are narrower: for sums.
        """

    def vector(self, values: F32Array) -> Tensor:
        """Parameters kept in float32: norms, biases."""

    def matrix(self, parts: Sequence[Part]) -> Matrix:
        """Take over weight parts of one form and K, stacked along N, in their checkpoint form."""

    def cut(self, matrix: Matrix, first: int, rows: int) -> Matrix:
        """Rows first … first + rows − 1 of a matrix, where they lie."""

    def dummy(self, form: Form, rows: int, columns: int, seed: int, multiple: int = 1) -> Matrix:
        """Seeded random weights [rows, columns], made where they lie, in place of parts whose rows
        are multiples of `multiple`."""

    def rotary_table(self, angles: F32Array, scale: float = 1.0) -> Tensor:
        """Cosines and sines of angles float32 [positions, rotated / 2], times `scale`."""

    def plane(
        self,
        blocks: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int = 0,
        *,
        code: RowCode = RowCode.FLOAT,
    ) -> Plane:
        """An empty pool of key and value rows for one layer, each head's packed by `code`."""

    def transfer_memory(self, size: int) -> memoryview:
        """`size` bytes on the host that transfers are fast from and to, at the start of a page."""

    def fence_transfers(self) -> None:
        """Transfers from now on come behind all that was enqueued until now."""

    def finish_transfers(self) -> None:
        """Wait for all transfers. They and this may be called beside the thread of the steps."""

    def store(
        self,
        entries: int,
        rows: int,
        width: int,
        *,
        wide: bool = False,
        code: RowCode = RowCode.FLOAT,
        plain: int = 0,
    ) -> Any:
        """An empty Store of `entries` × `rows` × `width` values, zero at first; `wide` as above.
        Rows are packed by `code`, but for their last `plain` values."""

    def routes(self, top: int) -> Routes:
        """Room for the expert choices of a step."""

    def logits(self, rows: int, vocab: int) -> Logits:
        """Room for the logits of `rows` rows."""

    def picker(self, rows: int, vocab: int, candidates: int) -> Picker:
        """Selection of `candidates` ids on up to `rows` rows of logits [rows, vocab]."""

    def embed(self, rows: Rows, table: Matrix, out: Tensor, *, first: int = 0) -> None:
        """out[r] = table[tokens[r] − first], 0 where the table has no such row."""

    def norm(self, rows: Rows, x: Tensor, norm: Norm, out: Tensor) -> None:
        """out[r] = norm(x[r])."""

    def linear(
        self,
        rows: Rows,
        x: Tensor,
        matrix: Matrix,
        out: Tensor,
        *,
        norm: Norm | None = None,
        bias: Tensor | None = None,
        add: bool = False,
    ) -> None:
        """out[r] = matrix · norm(x[r]) + bias, added to what out[r] holds when `add`."""

    def gated(
        self,
        rows: Rows,
        x: Tensor,
        gate_up: Matrix,
        out: Tensor,
        *,
        norm: Norm | None = None,
        limit: float = 0.0,
    ) -> None:
        """out[r] = silu(G · norm(x[r])) · (U · norm(x[r])); gate_up stacks [G; U].

        A `limit` above 0 bounds the first product from above and the second on both sides.
        """

    def rotary_cache_write(
        self, rows: Rows, qkv: Tensor, attention: Attention, plane: Plane, queries: Tensor
    ) -> None:
        """Norm and rotate q and k of qkv rows [q | k | v]; q to `queries`, k and v to the cache."""

    def attend_paged(
        self, rows: Rows, queries: Tensor, attention: Attention, plane: Plane, out: Tensor
    ) -> None:
        """out[r] = attention of row r over positions 0 … positions[r] of its slot."""

    def attend_projected(
        self,
        rows: Rows,
        qkv: Tensor,
        attention: Attention,
        plane: Plane,
        queries: Tensor,
        out: Tensor,
    ) -> None:
        """`rotary_cache_write`, then `attend_paged`; what `queries` hold afterwards is open."""

    def route(self, rows: Rows, x: Tensor, routing: Routing, routes: Routes) -> None:
        """Expert choices of each (normalised) row."""

    def moe(
        self,
        rows: Rows,
        x: Tensor,
        experts: Experts,
        routes: Routes,
        shared: Tensor | None,
        out: Tensor,
        *,
        add: bool = True,
    ) -> None:
        """out[r] = Σ_e weight · expert_e(x[r]) in ascending e, then + shared[r], added to what
        out[r] holds when `add`."""

    def moe_shared(
        self,
        rows: Rows,
        x: Tensor,
        experts: Experts,
        routes: Routes,
        shared: SharedExperts,
        room: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        add: bool = True,
    ) -> None:
        """As `moe` with the shared experts of x[r] for shared[r]. `room` holds their inner values
        and what they give, where a backend computes them apart."""

    def join(self, rows: Rows, first: Tensor, second: Tensor, out: Tensor) -> None:
        """out[r] = [first[r] | second[r]]."""

    def head(
        self, x: Tensor, index: Sequence[int], norm: Norm | None, table: Matrix, out: Logits
    ) -> None:
        """out[i, id] = table[id] · norm(x[index[i]])."""

    def write(self, x: Tensor, values: F32Array) -> None:
        """x[r] = values[r] for host float32 [count, width]."""

    def read(self, x: Tensor, count: int) -> F32Array:
        """The first `count` rows as host float32 (a copy)."""

    def read_logits(self, logits: Logits, count: int) -> F32Array:
        """The first `count` rows as host float32 [count, V] (a copy)."""

    def read_routes(self, routes: Routes, count: int) -> tuple[I32Array, F32Array]:
        """(ids, weights) of the first `count` rows, on the host (copies)."""
