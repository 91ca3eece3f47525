"""Mixture of experts: routing, pairs sorted by expert, two grouped projections, combination.

How many rows an expert gets is known on the device only: grids cover what is possible, and blocks
without work end at once.
"""

from __future__ import annotations

from dataclasses import replace

from kernels_numba.backend import Experts, Routing, Scores, SharedExperts
from kernels_numba.gpu import wide
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaMatrix, CudaTensor
from kernels_numba.gpu.project import FEW, Fixed, Grouping, Project, Shape
from kernels_numba.gpu.source import MOE

BLOCK_PAIRS = 512
"""Pairs that a block of the grouping kernels takes, one a thread."""
LANES = 32
HELD = (5, 8, 32)
"""Experts of a lane that the routing kernels are made for."""
KNOWN_BYTES = 8
"""What they know of an expert of a row: key and score."""
ROUTED = BLOCK_PAIRS // LANES
"""Rows of a block of theirs, a warp each; so few are sorted by expert at once."""
THREADS = 256
MOST_EXPERTS = LANES * HELD[-1]
OWN_BYTES = 8 << 10
"""Shared memory that the routing kernels declare, at most."""
MOST_TOP = 32
STREAMED = Shape(few=True, size=FEW[0])
NARROW = Shape(few=False, size=64)
BROAD = Shape(few=False, size=128)
WIDEST = Shape(few=False, size=wide.SIZES[-1])


def packed(sizes: tuple[int, ...]) -> int:
    """Numbers of sixteen bits in one, the first lowest."""
    return sum(size << 16 * i for i, size in enumerate(sizes))


def most_experts(shared: int) -> int:
    """Experts that a router may choose from where a block has `shared` bytes of shared memory."""
    return min(MOST_EXPERTS, (shared - OWN_BYTES) // (KNOWN_BYTES * ROUTED))


class RouteHandle:
    """A step's choices on the device, ascending by expert: ids int32, weights float32."""

    def __init__(self, capacity: int, top: int) -> None:
        cupy = load_cupy()
        self.top = top
        self.ids = cupy.zeros((capacity, top), cupy.int32)
        self.weights = cupy.zeros((capacity, top), cupy.float32)
        self.places = cupy.zeros((2, capacity * top), cupy.int32)
        self.tiles = cupy.zeros((capacity * top + 1, 4), cupy.int32)
        self.pointers = (int(self.ids.data.ptr), int(self.weights.data.ptr))
        self.source, self.place = (int(row.data.ptr) for row in self.places)
        self.tiles_at = int(self.tiles.data.ptr)
        self.sorted = (self.source, self.place, self.tiles_at)
        blocks = -(-capacity * top // BLOCK_PAIRS)
        self.counts = cupy.zeros((blocks, MOST_EXPERTS), cupy.int32)
        self.counts_at = int(self.counts.data.ptr)
        self.grouped: tuple[int, int, tuple[int, ...]] | None = None
        """How the pairs are sorted that `tiles`, `source` and `place` tell of: rows, experts, sizes
        of tiles. None when the choices are newer."""


class Mixture:
    """Scratch for the pairs of a full step, made at the first call of each shape."""

    def __init__(self, kernels: Kernels, project: Project, capacity: int, shared: int) -> None:
        self._kernels, self._project, self._capacity = kernels, project, capacity
        self._most = most_experts(shared)
        self._scores: CudaTensor | None = None
        self._inner: CudaTensor | None = None
        self._result: CudaTensor | None = None

    def route(self, count: int, x: CudaTensor, routing: Routing, handle: RouteHandle) -> None:
        if routing.experts > self._most or routing.top > MOST_TOP:
            message = (
                f"{routing.top} of {routing.experts} experts: at most {MOST_TOP} of {self._most}"
            )
            raise ValueError(message)
        if routing.bias is None or routing.table is not None or routing.scores != Scores.SIGMOID:
            raise ValueError("a router that is not a biased sigmoid is not on this device yet")
        self._scores = _room(self._scores, self._capacity, routing.experts, wide=True)
        source = self._project.input(count, x, None)
        self._project.plain(count, source, routing.gate, self._scores)
        scores = (self._scores.pointer, self._scores.stride, routing.bias.pointer)
        choice = (routing.experts, routing.top, int(routing.normalise), routing.scale)
        held = next(held for held in HELD if routing.experts <= LANES * held)
        if count <= ROUTED:
            sizes = (STREAMED.size,) * 4
            most = _most_tiles(count * routing.top, routing.experts, sizes)
            self._kernels.launch(
                MOE, f"route_and_group_{held}", (1,), BLOCK_PAIRS,
                (*scores, count, *choice, *handle.pointers, most, *handle.sorted),
                KNOWN_BYTES * count * routing.experts,
                early=True,
            )  # fmt: skip
            handle.grouped = (count, routing.experts, sizes)
            return
        self._kernels.launch(
            MOE, f"route_sigmoid_{held}", (-(-count // ROUTED),), BLOCK_PAIRS,
            (*scores, count, *choice, *handle.pointers),
            KNOWN_BYTES * ROUTED * routing.experts,
            early=True,
        )  # fmt: skip
        handle.grouped = None

    def _shape(self, count: int, pairs: int, experts: Experts, number: int) -> Shape:
        if count <= FEW[-1]:
            return STREAMED
        if self._project.wide(experts.gate_up, experts.intermediate, gated=True) is not None:
            return WIDEST
        few = pairs < BROAD.size // 2 * number
        widest = min(map(self._project.widest_tile, (experts.gate_up, experts.down)))
        return NARROW if few or widest < BROAD.size else BROAD

    def _group(self, count: int, number: int, handle: RouteHandle, shape: Shape) -> Grouping:
        pairs = count * handle.top
        sizes = wide.SIZES if shape is WIDEST else (shape.size,) * 4
        most = _most_tiles(pairs, number, sizes)
        if handle.grouped != (count, number, sizes):
            self._sort(pairs, number, sizes, most, handle)
            handle.grouped = (count, number, sizes)
        used, room = handle.tiles_at + 16 * most, self._capacity * handle.top
        return Grouping(handle.tiles_at, used, handle.source, most, room, pairs, shape)

    def _sort(
        self, pairs: int, number: int, sizes: tuple[int, ...], most: int, handle: RouteHandle
    ) -> None:
        blocks = -(-pairs // BLOCK_PAIRS)
        if blocks > 1:
            self._kernels.launch(
                MOE, "count_by_expert", (blocks,), BLOCK_PAIRS,
                (handle.pointers[0], pairs, number, handle.counts_at),
                early=True,
            )  # fmt: skip
        self._kernels.launch(
            MOE, "group_by_expert", (blocks,), BLOCK_PAIRS,
            (handle.pointers[0], pairs, handle.top, number, packed(sizes), most,
             handle.counts_at, *handle.sorted),
            early=True,
        )  # fmt: skip

    @staticmethod
    def takes(count: int, experts: Experts, shared: SharedExperts) -> bool:
        """Whether `moe` computes the shared experts in the launches of the others."""
        return count <= STREAMED.size and all(
            _alike(one, all_of, experts.intermediate * sides)
            for one, all_of, sides in (
                (shared.gate_up, experts.gate_up, 2),
                (shared.down, experts.down, 0),
            )
        )

    def moe(
        self,
        count: int,
        x: CudaTensor,
        experts: Experts,
        handle: RouteHandle,
        shared: CudaTensor | SharedExperts | None,
        out: CudaTensor,
        *,
        add: bool,
    ) -> None:
        """`shared` experts are computed here where `takes` says so, else before."""
        gate_up: CudaMatrix = experts.gate_up
        down: CudaMatrix = experts.down
        number = gate_up.rows // (2 * experts.intermediate)
        pairs, room = count * handle.top, self._capacity * handle.top + STREAMED.size
        inner = self._inner = _room(self._inner, room, experts.intermediate, wide=False)
        result = self._result = _room(self._result, room, x.width, wide=True)
        source = self._project.input(count, x, None)
        shape = self._shape(count, pairs, experts, number)
        group = self._group(count, number, handle, shape)
        fixed: tuple[Fixed | None, Fixed | None] = (None, None)
        target = (0, 0, 0)
        if isinstance(shared, SharedExperts):
            # Their rows stand behind those of the pairs.
            fixed = (
                Fixed(shared.gate_up, count, 0, pairs),
                Fixed(shared.down, count, pairs, pairs),
            )
            target = (result.pointer + 4 * pairs * result.stride, *result.target[1:])
        elif shared is not None:
            target = shared.target
        self._project.gated(
            count,
            source,
            gate_up,
            inner,
            weight_rows=experts.intermediate,
            grouping=replace(group, fixed=fixed[0]),
        )
        placed = replace(group, gather=0, fixed=fixed[1])
        self._project.plain(count, inner, down, result, weight_rows=x.width, grouping=placed)
        self._kernels.launch(
            MOE, "combine", (count, -(-x.width // THREADS)), THREADS,
            (result.pointer, result.stride, handle.place, handle.pointers[1], handle.top, *target,
             x.width, *out.target, int(add)),
            early=True,
        )  # fmt: skip


def _most_tiles(pairs: int, number: int, sizes: tuple[int, ...]) -> int:
    """Tiles of at least sizes[0] places that `number` experts can have of `pairs`."""
    return min(min(number, pairs) + pairs // sizes[0], pairs)


def _alike(one: CudaMatrix, all_of: CudaMatrix, rows: int) -> bool:
    """Whether a launch takes `one` beside experts of `rows` rows (0: any number) each."""
    same = (one.form, one.group, one.columns) == (all_of.form, all_of.group, all_of.columns)
    return same and rows in (0, one.rows)


def _room(held: CudaTensor | None, rows: int, width: int, *, wide: bool) -> CudaTensor:
    """`held`, or a larger tensor where it does not hold rows × width."""
    if held is not None and held.stride >= width and held.array.shape[0] >= rows:
        return held
    if held is not None:
        rows, width = max(rows, held.array.shape[0]), max(width, held.stride)
    return CudaTensor(rows, width, wide=wide)
