"""Projections of many rows of x on Hopper's own matrix instructions (tile_hopper.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.backend import Norm
from kernels_numba.gpu.boxes import Boxes, Maps
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CHUNK, CudaMatrix, CudaTensor, padded
from kernels_numba.gpu.source import ROWS, WIDE_FORMS, wide_unit
from kernels_numba.weights import Form

THREADS = 384
WEAVE_THREADS = 256
SIZES = (64, 112, 144, 160)
"""Rows of x with which a tile is multiplied; the kernel's own constants, as those below."""
BLOCK_ROWS = 128
"""Weight rows of a block; a pair of blocks shares a tile's rows of x."""
PAIR = 2
ROW_VALUES = 64
"""Values of x that stand in a row of shared memory."""
STAGES = {Form.BF16: 5, Form.NVFP4: 4}
EXIT_BYTES = 8 * 32 * 20 * 4
"""Shared memory through which sums leave."""
TILE_COST = 16
"""What a tile costs beside its rows, in rows: filling and emptying the block."""


class _Woven:
    """Rows of x as the kernel reads them, and the maps of boxes of them."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.array = load_cupy().zeros(rows * columns, np.uint16)
        self.pointer = int(self.array.data.ptr)
        self._maps: dict[int, Maps] = {}

    def maps(self, columns: int) -> int:
        """Device address of maps for rows of `columns` values, one map for each size of tile."""
        if columns not in self._maps:
            sizes, strides = (columns, self.rows), (2 * columns,)
            self._maps[columns] = Maps(
                [
                    Boxes(self.pointer, np.dtype(np.uint16), sizes, strides,
                          (ROW_VALUES, rows // PAIR), exchanged=True)
                    for rows in SIZES
                ]
            )  # fmt: skip
        return self._maps[columns].pointer


class Wide:
    """Launches the kernel; holds woven inputs, of a step's rows and of its experts' pairs."""

    def __init__(self, kernels: Kernels, capacity: int, processors: int) -> None:
        self._kernels, self._capacity = kernels, capacity
        self._clusters = processors // PAIR
        self._columns = 1
        self._woven: dict[int, _Woven] = {}
        self._weights: dict[tuple[Any, ...], Maps] = {}

    def make_room(self, columns: int) -> None:
        """Let inputs of `columns` values be woven."""
        self._columns = max(self._columns, padded(columns))

    @staticmethod
    def takes(matrix: CudaMatrix, weight_rows: int, *, gated: bool) -> bool:
        """Whether the kernel multiplies `matrix`, of `weight_rows` or as many pairs per expert."""
        return matrix.form in WIDE_FORMS and weight_rows % (8 if gated else 4) == 0

    @staticmethod
    def gives(output: tuple[int, ...], *, gated: bool) -> bool:
        """Whether the kernel writes such an output: gated ones in bf16, sums added in float32."""
        _, _, wide, _, add = output
        return not wide if gated else bool(wide) or not add

    def tile_rows(self, count: int, weight_rows: int) -> int:
        """Rows of x per tile that keep all blocks busy longest, for so many weight rows."""
        strips = -(-weight_rows // (BLOCK_ROWS * PAIR))

        def cost(size: int) -> int:
            tiles = -(-count // size)
            turns = -(-tiles * strips // self._clusters)
            return turns * (size + TILE_COST)

        return min(reversed(SIZES), key=cost)

    def weave(
        self,
        count: int,
        most: int,
        x: CudaTensor,
        matrix: CudaMatrix,
        norm: Norm | None,
        index: int,
    ) -> int:
        """norm(x[index[r]]) for r < count ≤ most, as `matrix` wants it; the maps' address."""
        columns = matrix.chunks * CHUNK[matrix.form]
        woven = self._woven.get(most)
        if woven is None or woven.columns < columns:
            # A step's rows pass every matrix, experts' pairs only theirs, the widest first.
            wide = max(columns, self._columns) if most == self._capacity else columns
            woven = self._woven[most] = _Woven(most, wide)
        weight, eps = (0, 0.0) if norm is None else (norm.weight.pointer, norm.eps)
        self._kernels.launch(
            ROWS, "weave_rows", (count,), WEAVE_THREADS,
            (*x.target, index, weight, eps, x.width, woven.pointer, columns, int(matrix.form)),
            early=True,
        )  # fmt: skip
        return woven.maps(columns)

    def run(
        self,
        kind: str,
        count: int,
        inputs: int,
        matrix: CudaMatrix,
        weight_rows: int,
        output: tuple[int, ...],
        tiles: int,
        most: int,
    ) -> None:
        """`kind` plain or gated. `inputs` as `weave` returns it; `tiles` of experts, at most
        `most`, or 0 for `count` rows of x and one matrix. `output`: target, bias, whether to
        add."""
        every = weight_rows * (2 if kind == "gated" else 1)
        strips = -(-every // (BLOCK_ROWS * PAIR))
        size = SIZES[-1] if tiles else self.tile_rows(count, every)
        items = strips * (most if tiles else -(-count // size))
        _, _, scale, scale_stride, factors = matrix.weights
        chunk = CHUNK[matrix.form]
        stage = BLOCK_ROWS * matrix.data.itemsize * matrix.data.shape[1] // matrix.chunks
        stage += SIZES[-1] * chunk * 2
        self._kernels.launch(
            wide_unit(matrix.form), f"wide_{kind}", (PAIR * min(self._clusters, items),), THREADS,
            (self._boxes(matrix, weight_rows, gated=kind == "gated"), scale, scale_stride, factors,
             weight_rows, matrix.chunks, inputs, *output, tiles, most, size, count),
            STAGES[matrix.form] * stage + EXIT_BYTES + 1024,
        )  # fmt: skip

    def _boxes(self, matrix: CudaMatrix, weight_rows: int, *, gated: bool) -> int:
        """Device address of the map of a block's weight rows: gated ones alternate by eights."""
        key = (matrix.weights[:2], matrix.data.shape, weight_rows, gated)
        maps = self._weights.get(key)
        if maps is None:
            maps = self._weights[key] = Maps([_weight_boxes(matrix, weight_rows, gated=gated)])
        return maps.pointer


def _weight_boxes(matrix: CudaMatrix, weight_rows: int, *, gated: bool) -> Boxes:
    pointer, stride = matrix.weights[:2]
    values = matrix.data.shape[1]
    wide = values // matrix.chunks
    experts = matrix.rows // (2 * weight_rows if gated else weight_rows)
    sizes, strides = (values, weight_rows, 1, 1, experts), (stride, *[weight_rows * stride] * 3)
    box = (wide, BLOCK_ROWS, 1, 1, 1)
    if gated:
        sizes = (values, 8, 2, weight_rows // 8, experts)
        strides = (stride, weight_rows * stride, 8 * stride, 2 * weight_rows * stride)
        box = (wide, 8, 2, BLOCK_ROWS // 16, 1)
    exchanged = wide * matrix.data.itemsize == 2 * ROW_VALUES
    return Boxes(pointer, matrix.data.dtype, sizes, strides, box, exchanged=exchanged)
