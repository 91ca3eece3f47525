"""Projections: which kernel takes how many rows. All give a row the same bits."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_numba.backend import Norm
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaMatrix, CudaTensor, CudaVector
from kernels_numba.gpu.source import ROWS, linear_unit, tile_unit
from kernels_numba.weights import Form

THREADS = 256
FEW = (8, 16, 32, 64)
"""Rows that one pass of the streaming kernel takes; more go to the tiled one."""
BLOCK_ROWS = 128
"""Weight rows of a tiled block."""
MOST_BYTES = 0xFFFF0000
"""One expert's or a whole dense matrix: the tiled kernel counts in 32 bits."""
STRIP_ROWS = 16
"""Weight rows of a streaming block; a broad one has two strips."""
STAGES = 4
"""The tiled kernel's own constant."""
_STAGE_BYTES = {
    (Form.BF16, 64): (128 + 64) * 128 + 16,
    (Form.BF16, 128): (128 + 128) * 128 + 16,
    (Form.NVFP4, 64): 128 * 64 + 64 * 256 + 128 * 8,
    (Form.NVFP4, 128): 128 * 64 + 128 * 256 + 128 * 8,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Which kernel, streaming (`few`) or tiled, and how many rows of x a block of it takes."""

    few: bool
    size: int


def shape_of(count: int) -> Shape:
    for size in FEW:
        if count <= size:
            return Shape(few=True, size=size)
    return Shape(few=False, size=128)


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows dealt to experts: device addresses of the tiles and of each sorted place's row (0: the
    place itself), and how many tiles there can be."""

    tiles: int
    gather: int
    most: int
    shape: Shape


class Project:
    """Holds the normed input that projections read."""

    def __init__(self, kernels: Kernels, capacity: int, processors: int) -> None:
        self._kernels = kernels
        self._processors = processors
        self._capacity = capacity
        self._input = CudaTensor(capacity, 1, wide=False)

    def make_room(self, columns: int) -> None:
        """Let inputs of `columns` values be prepared."""
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
        bias: CudaVector | None = None,
        add: bool = False,
        rows: int = 0,
        grouping: Grouping | None = None,
    ) -> None:
        """out = matrix · x + bias (+ out); with `grouping`, `rows` of each expert's own."""
        pointer = 0 if bias is None else bias.pointer
        self._run("linear", count, x, matrix, rows or matrix.rows, out, pointer, int(add), grouping)

    def gated(
        self,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        out: CudaTensor,
        *,
        rows: int = 0,
        grouping: Grouping | None = None,
    ) -> None:
        """out = silu(gate · x) · (up · x), [gate; up] of `rows` rows each."""
        self._run("gated", count, x, matrix, rows or matrix.rows // 2, out, 0, 0, grouping)

    def _run(
        self,
        kind: str,
        count: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        rows: int,
        out: CudaTensor,
        bias: int,
        add: int,
        grouping: Grouping | None,
    ) -> None:
        shape = shape_of(count) if grouping is None else grouping.shape
        tiles = -(-count // shape.size) if grouping is None else grouping.most
        halves = 2 if kind == "gated" else 1
        if shape.few:
            grid, variant = self._streamed(-(-rows * halves // STRIP_ROWS), tiles, shape.size)
            name, unit, shared = kind + variant, linear_unit(matrix.form), 0
        else:
            if rows * halves * matrix.weights[1] > MOST_BYTES:
                raise ValueError(f"a matrix of {rows * halves} rows exceeds {MOST_BYTES} bytes")
            grid = (tiles, -(-rows * halves // BLOCK_ROWS))
            name, unit = "tile" if kind == "linear" else f"tile_{kind}", tile_unit(matrix.form)
            shared = STAGES * _STAGE_BYTES[matrix.form, shape.size]
        self._kernels.launch(
            unit, f"{name}_{shape.size}", grid, THREADS,
            (*matrix.weights, rows, matrix.chunks, x.pointer, x.stride, *out.target, bias, add,
             0 if grouping is None else grouping.tiles,
             0 if grouping is None else grouping.gather, count),
            shared,
        )  # fmt: skip

    def _streamed(self, strips: int, tiles: int, size: int) -> tuple[tuple[int, int], str]:
        """The grid, and which variant keeps enough in flight on it; their bits are equal."""
        blocks = strips * tiles
        if size in (16, 32) and blocks >= 4 * self._processors:
            return (-(-strips // 2), tiles), "_broad"
        if size in (8, 16) and blocks <= 2 * self._processors:
            return (strips, tiles), "_deep"
        return (strips, tiles), ""
