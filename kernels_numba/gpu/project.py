"""Projections: which kernel takes how many rows of x. All give a row the same bits.

`count` says how many rows x has, `weight_rows` how many the matrix has (one expert's, where there
are several; gated: pairs of a gate and an up row).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels_numba.backend import Norm
from kernels_numba.gpu.dealing import WARPS, Deal, deal, deal_short
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CHUNK, LINE_ROWS, CudaMatrix, CudaTensor, CudaVector
from kernels_numba.gpu.source import HOPPER, ROWS, rings_of, tile_unit
from kernels_numba.gpu.wide import Wide
from kernels_numba.weights import LAYOUTS, Scale

THREADS = 256
FEW = (8, 16, 32, 64)
"""Rows of x that one pass of the streaming kernel takes: eights, as its matrix instruction does.
More go to the tiled one."""
BLOCK_ROWS = 128
"""Weight rows of a tiled block."""
MOST_BYTES = 0xFFFF0000
"""One expert's or a whole dense matrix: the tiled kernel counts its bytes in 32 bits. 64 KiB below
what they can say."""
NO_WEIGHTS = (0, 0, 0, 0, 0)
"""In place of a matrix's `weights`."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which kernel, streaming (`few` rows of x) or tiled, and how many of them a block takes."""

    few: bool
    size: int


def shape_of(count: int, widest: int) -> Shape:
    for size in FEW:
        if count <= size:
            return Shape(few=True, size=size)
    return Shape(few=False, size=widest)


BROAD, NARROW = 128, 64
"""Rows of x that the tiled kernels take."""


def _stage_bytes(matrix: CudaMatrix, size: int) -> int:
    """Shared memory of one chunk of a tile: codes, rows of x, scales."""
    layout, chunk = LAYOUTS[matrix.form], CHUNK[matrix.form]
    scales = 0
    if layout.scale is not Scale.NONE:
        lines = BLOCK_ROWS // LINE_ROWS if layout.grid else BLOCK_ROWS
        scales = lines * chunk // (matrix.group or layout.group) * layout.scale.dtype.itemsize
    return BLOCK_ROWS * layout.code_bytes(chunk) + scales + size * chunk * 2


@dataclass(frozen=True, slots=True)
class Fixed:
    """A matrix beside the experts' that `count` rows of x meet in the same launch: the first of
    them in x, and where their output begins. It has the experts' form and sizes."""

    matrix: CudaMatrix
    count: int
    first: int
    to: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows of x grouped by expert: device addresses of the tiles, of how many there are, and of
    each sorted place's row (0: the place itself); how many tiles and how many pairs of rows and
    experts there can be, and how many pairs there are. `fixed` goes along where few rows are
    streamed."""

    tiles: int
    used: int
    gather: int
    most: int
    room: int
    pairs: int
    shape: Shape
    fixed: Fixed | None = None


class Project:
    """Holds the normed input that projections read."""

    def __init__(self, kernels: Kernels, capacity: int, processors: int, shared: int) -> None:
        self._kernels = kernels
        self._processors, self._shared = processors, shared
        self._rings = rings_of(shared)
        self._capacity = capacity
        self._input = CudaTensor(capacity, 1, wide=False)
        self._wide: Wide | None = None
        if kernels.architecture == HOPPER:
            self._wide = Wide(kernels, capacity, processors)

    def wide(self, matrix: CudaMatrix, weight_rows: int, *, gated: bool) -> Wide | None:
        """The device's own kernel for many rows of `matrix`, where it has one."""
        if self._wide is None or not self._wide.takes(matrix, weight_rows, gated=gated):
            return None
        return self._wide

    def widest_tile(self, matrix: CudaMatrix) -> int:
        """Rows of x of the widest tiled kernel: FP8's sums of groups need their own registers, and
        chunks their room."""
        room = self._rings.stages * _stage_bytes(matrix, BROAD)
        return NARROW if matrix.group or room > self._shared else BROAD

    def make_room(self, columns: int) -> None:
        """Let inputs of `columns` values be prepared."""
        if self._wide is not None:
            self._wide.make_room(columns)
        if self._input.stride < columns:
            self._input = CudaTensor(self._capacity, columns, wide=False)

    def normed(
        self, count: int, x: CudaTensor, norm: Norm | None, out: CudaTensor, index: int = 0
    ) -> None:
        """out[r] = norm(x[index[r]]), `index` a device address or 0 for r itself."""
        weight, eps = (0, 0.0) if norm is None else (norm.weight.pointer, norm.eps)
        self._kernels.launch(
            ROWS, "norm_rows", (count,), THREADS,
            (*x.target, index, weight, eps, x.width, *out.target),
            early=True,
        )  # fmt: skip

    def input(self, count: int, x: CudaTensor, norm: Norm | None, index: int = 0) -> CudaTensor:
        """x in bf16, normed and picked; x itself where that is what it is."""
        if norm is None and not x.wide and not index:
            return x
        self.normed(count, x, norm, self._input, index)
        return self._input

    def plain(
        self,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        out: CudaTensor,
        *,
        norm: Norm | None = None,
        index: int = 0,
        bias: CudaVector | None = None,
        add: bool = False,
        weight_rows: int = 0,
        grouping: Grouping | None = None,
    ) -> None:
        """out[r] = matrix · norm(x[index[r]]) + bias (+ out[r]); with `grouping`, `weight_rows` of
        each expert's own."""
        output = (*out.target, 0 if bias is None else bias.pointer, int(add))
        source = (x, norm, index)
        self._run("linear", count, source, matrix, weight_rows or matrix.rows, output, grouping)

    def gated(
        self,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        out: CudaTensor,
        *,
        norm: Norm | None = None,
        weight_rows: int = 0,
        grouping: Grouping | None = None,
    ) -> None:
        """out = silu(gate · norm(x)) · (up · norm(x)), [gate; up] of `weight_rows` each."""
        output = (*out.target, 0, 0)
        half = weight_rows or matrix.rows // 2
        self._run("gated", count, (x, norm, 0), matrix, half, output, grouping)

    def _run(
        self,
        kind: str,
        count: int,
        source: tuple[CudaTensor, Norm | None, int],
        matrix: CudaMatrix,
        weight_rows: int,
        output: tuple[int, ...],
        grouping: Grouping | None,
    ) -> None:
        shape = shape_of(count, self.widest_tile(matrix)) if grouping is None else grouping.shape
        wide = None if shape.few else self.wide(matrix, weight_rows, gated=kind == "gated")
        if wide is not None and wide.gives(output, gated=kind == "gated"):
            self._widely(wide, kind, count, source, matrix, weight_rows, output, grouping)
            return
        run = self._stream if shape.few else self._tile
        x = self.input(count, *source)
        run(kind, shape, count, x, matrix, weight_rows, output, grouping)

    def _widely(
        self,
        wide: Wide,
        kind: str,
        count: int,
        source: tuple[CudaTensor, Norm | None, int],
        matrix: CudaMatrix,
        weight_rows: int,
        output: tuple[int, ...],
        grouping: Grouping | None,
    ) -> None:
        kind = "gated" if kind == "gated" else "plain"
        x, norm, index = source
        if grouping is None:
            inputs = wide.weave(count, self._capacity, x, matrix, norm, index)
            wide.run(kind, count, inputs, matrix, weight_rows, output, 0, 0)
            return
        x = self.input(count, x, norm, index)
        inputs = wide.weave(grouping.pairs, grouping.room, x, matrix, None, grouping.gather)
        wide.run(
            kind, grouping.pairs, inputs, matrix, weight_rows, output, grouping.tiles, grouping.most
        )

    def _stream(
        self,
        kind: str,
        shape: Shape,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        weight_rows: int,
        output: tuple[int, ...],
        grouping: Grouping | None,
    ) -> None:
        tiles = 0 if grouping is None else grouping.most
        fixed, experts = matrix.weights, NO_WEIGHTS
        x_rows = (count, 0, 0, 0, 0, 0)
        if grouping is not None:
            fixed, experts, own = NO_WEIGHTS, matrix.weights, (0, 0, 0)
            if (beside := grouping.fixed) is not None:
                fixed, own = beside.matrix.weights, (beside.count, beside.first, beside.to)
                tiles += 1
            x_rows = (*own, grouping.tiles, grouping.used, grouping.gather)
        alone: Deal | None = None
        if kind == "linear" and grouping is None:
            alone = deal_short(
                matrix.form, weight_rows, matrix.chunks, count, self._processors, self._shared
            )
        dealt = alone or deal(
            kind,
            matrix.form,
            matrix.group,
            weight_rows,
            tiles,
            shape.size,
            self._processors,
            self._rings,
        )
        self._kernels.launch(
            dealt.unit, dealt.name, (dealt.blocks,), 32 * WARPS,
            (*fixed, *experts, weight_rows, dealt.groups, matrix.chunks, x.pointer, x.stride,
             *output, *x_rows, *dealt.split, dealt.phase),
            dealt.shared_bytes,
            early=True,
        )  # fmt: skip

    def _tile(
        self,
        kind: str,
        shape: Shape,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        weight_rows: int,
        output: tuple[int, ...],
        grouping: Grouping | None,
    ) -> None:
        tiles = -(-count // shape.size) if grouping is None else grouping.most
        every = weight_rows * (2 if kind == "gated" else 1)
        if every * matrix.weights[1] > MOST_BYTES:
            raise ValueError(f"a matrix of {every} rows exceeds {MOST_BYTES} bytes")
        name = "tile" if kind == "linear" else f"tile_{kind}"
        self._kernels.launch(
            tile_unit(matrix.form, matrix.group, self._rings), f"{name}_{shape.size}",
            (tiles, -(-every // BLOCK_ROWS)), THREADS,
            (*matrix.weights, weight_rows, matrix.chunks, x.pointer, x.stride, *output,
             0 if grouping is None else grouping.tiles,
             0 if grouping is None else grouping.gather, count),
            self._rings.stages * _stage_bytes(matrix, shape.size),
        )  # fmt: skip
