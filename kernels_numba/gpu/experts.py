"""Mixture of experts: routing, pairs sorted by expert, two grouped projections, combination.

How many rows an expert gets is known on the device only: grids cover what is possible, and blocks
without work end at once.
"""

from __future__ import annotations

from kernels_numba.backend import Experts, Routing
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaMatrix, CudaTensor
from kernels_numba.gpu.project import FEW, Grouping, Project, Shape, widest_tile
from kernels_numba.gpu.source import MOE

GROUP_THREADS = 1024
THREADS = 256
MOST_EXPERTS = 1024
MOST_TOP = 32
STREAMED = Shape(few=True, size=FEW[0])
NARROW = Shape(few=False, size=64)
WIDE = Shape(few=False, size=128)


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


class Mixture:
    """Scratch for the pairs of a full step, made at the first call of each shape."""

    def __init__(self, kernels: Kernels, project: Project, capacity: int) -> None:
        self._kernels, self._project, self._capacity = kernels, project, capacity
        self._scores: CudaTensor | None = None
        self._inner: CudaTensor | None = None
        self._result: CudaTensor | None = None

    def route(self, count: int, x: CudaTensor, routing: Routing, handle: RouteHandle) -> None:
        if routing.experts > MOST_EXPERTS or routing.top > MOST_TOP:
            message = (
                f"{routing.top} of {routing.experts} experts: at most {MOST_TOP} of {MOST_EXPERTS}"
            )
            raise ValueError(message)
        self._scores = _room(self._scores, self._capacity, routing.experts, wide=True)
        source = self._project.input(count, x, None)
        self._project.plain(count, source, routing.gate, self._scores)
        self._kernels.launch(
            MOE, "route_sigmoid", (count,), 32,
            (self._scores.pointer, self._scores.stride, routing.bias.pointer, routing.experts,
             routing.top, int(routing.normalise), routing.scale, *handle.pointers),
            early=True,
        )  # fmt: skip

    def _group(self, count: int, number: int, handle: RouteHandle, widest: int) -> Grouping:
        pairs = count * handle.top
        shape = NARROW if pairs < WIDE.size // 2 * number or widest < WIDE.size else WIDE
        if count <= FEW[-1]:
            shape = STREAMED
        most = min(min(number, pairs) + pairs // shape.size, pairs)
        self._kernels.launch(
            MOE, "group_by_expert", (1,), GROUP_THREADS,
            (handle.pointers[0], pairs, handle.top, number, shape.size, most, handle.source,
             handle.place, handle.tiles_at),
            early=True,
        )  # fmt: skip
        used = handle.tiles_at + 16 * most
        return Grouping(handle.tiles_at, used, handle.source, most, shape)

    def moe(
        self,
        count: int,
        x: CudaTensor,
        experts: Experts,
        handle: RouteHandle,
        shared: CudaTensor | None,
        out: CudaTensor,
        *,
        add: bool,
    ) -> None:
        gate_up: CudaMatrix = experts.gate_up
        down: CudaMatrix = experts.down
        number = gate_up.rows // (2 * experts.intermediate)
        room = self._capacity * handle.top
        inner = self._inner = _room(self._inner, room, experts.intermediate, wide=False)
        result = self._result = _room(self._result, room, x.width, wide=True)
        source = self._project.input(count, x, None)
        group = self._group(count, number, handle, widest_tile(gate_up))
        self._project.gated(
            count, source, gate_up, inner, rows=experts.intermediate, grouping=group
        )
        placed = Grouping(group.tiles, group.used, 0, group.most, group.shape)
        self._project.plain(count, inner, down, result, rows=x.width, grouping=placed)
        target = (0, 0, 0) if shared is None else shared.target
        self._kernels.launch(
            MOE, "combine", (count, -(-x.width // THREADS)), THREADS,
            (result.pointer, result.stride, handle.place, handle.pointers[1], handle.top, *target,
             x.width, *out.target, int(add)),
            early=True,
        )  # fmt: skip


def _room(held: CudaTensor | None, rows: int, width: int, *, wide: bool) -> CudaTensor:
    """`held`, or a larger tensor where it does not hold rows × width."""
    if held is not None and held.stride >= width and held.array.shape[0] >= rows:
        return held
    if held is not None:
        rows, width = max(rows, held.array.shape[0]), max(width, held.stride)
    return CudaTensor(rows, width, wide=wide)
