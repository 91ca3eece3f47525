"""The CUDA backend: bf16 activations, float32 sums, one arithmetic for every number of rows.

The residual, qkv and whatever else asks for it (`wide`) stay in float32: a bf16 residual loses an
eighth bit per layer, and its traffic is nothing beside the weights'.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from kernels_numba.backend import (
    Attention,
    Experts,
    F32Array,
    I32Array,
    Norm,
    Routes,
    Routing,
    Rows,
    SharedExperts,
)
from kernels_numba.gpu.attend import Attend, turning
from kernels_numba.gpu.attend_wide import UNSENT, AttendWide
from kernels_numba.gpu.device import Device, load_cupy, open_device
from kernels_numba.gpu.dummy import dummy_matrix
from kernels_numba.gpu.errors import CudaError
from kernels_numba.gpu.experts import Mixture, RouteHandle
from kernels_numba.gpu.graph import StepGraphs, reaches
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaMatrix, CudaTensor, CudaVector, Staging
from kernels_numba.gpu.picker import CudaPicker
from kernels_numba.gpu.plane import CudaPlane, require_room
from kernels_numba.gpu.project import Project
from kernels_numba.gpu.slot_tables import DeviceTables
from kernels_numba.gpu.source import (
    HOPPER,
    ROWS,
    STEP,
    attention_units,
    padded_head,
    rings_of,
    shared_units,
)
from kernels_numba.gpu.store import CudaStore
from kernels_numba.gpu.stream import fetched, on_stream
from kernels_numba.gpu.transfer import Transfers, pinned
from kernels_numba.packed_rows import RowCode
from kernels_numba.weights import Form, Part

THREADS = 256
ROTARY_HEADS = 16
ROTARY_THREADS = 8 * ROTARY_HEADS
STAGING_BYTES = 256 << 10

T = TypeVar("T")


_STEPS = itertools.count(UNSENT + 1)


class _RowHandle:
    """The device copies of a `Rows`: tokens, positions, slots [capacity], tables."""

    def __init__(self, rows: Rows) -> None:
        cupy = load_cupy()
        self._capacity = rows.capacity
        self._words = cupy.zeros(3 * rows.capacity, cupy.int32)
        self._tables = cupy.zeros(rows.tables.shape, cupy.int32)
        self._sent = np.full_like(rows.tables, -1)
        self.reach = 0
        """No position of the step is as large; grids follow from it."""
        self.step = UNSENT
        """Tells the steps apart that were sent."""
        self.apart = False
        """Every row of the step has a slot of its own."""
        start = int(self._words.data.ptr)
        self.tokens, self.positions, self.slots = (start + 4 * rows.capacity * i for i in range(3))
        self.metadata = (
            self.positions,
            self.slots,
            int(self._tables.data.ptr),
            int(rows.tables.shape[1]),
        )

    def write(self, rows: Rows, words: I32Array) -> None:
        """The rows to `words` int32 [3, count], as `begin_step` reads them."""
        self.reach = int(rows.positions[: rows.count].max(initial=0)) + 1
        self.step = next(_STEPS)
        self.apart = len(set(rows.slots[: rows.count].tolist())) == rows.count
        for to, values in zip(words, (rows.tokens, rows.positions, rows.slots), strict=True):
            to[...] = values[: rows.count]

    def send_tables(self, rows: Rows, staging: Staging) -> None:
        """Block tables, where they have changed."""
        if not np.array_equal(self._sent, rows.tables):
            staging.send(self.metadata[2], rows.tables)
            self._sent[...] = rows.tables


def _require_floats(code: RowCode) -> None:
    if code is not RowCode.FLOAT:
        raise ValueError(f"cached rows in {code.name}: not on CUDA yet")


class CudaBackend:
    """Implements `kernels_numba.backend.Backend` for up to `capacity` rows on one device.

    Raises CudaError when no device can be used. Operations only enqueue; `read`, `read_logits`,
    `read_routes` and a picker's results wait. Scratch grows when matrices are taken over and in an
    operation's first call, never after.
    """

    name = "cuda"

    def __init__(self, capacity: int, device: int = 0) -> None:
        self.device = open_device(device)
        cupy = load_cupy()
        self.capacity = capacity
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._enter()
        self._kernels = Kernels()
        # Before any weight is read: a kernel that does not compile is known at once.
        self._kernels.prepare(shared_units(rings_of(self.device.shared)))
        self._staging = Staging(STAGING_BYTES)
        self._index = cupy.zeros(capacity, cupy.int32)
        self._indexed: list[int] = []
        self._project = Project(self._kernels, capacity, self.device.processors, self.device.shared)
        wide: AttendWide | None = None
        if self._kernels.architecture == HOPPER:
            wide = AttendWide(self._kernels, self._staging, capacity, self.device.processors)
        self._attend = Attend(self._kernels, wide, self.device)
        self._mixture = Mixture(self._kernels, self._project, capacity, self.device.shared)
        self._graphs = StepGraphs(self._stream)
        self._transfers = Transfers(self._stream)
        # Pickers of one shape, which take turns, share what slots have.
        self._tables: dict[tuple[int, int], DeviceTables] = {}
        # The last pick of every slot, and when the step began.
        self._picks = cupy.zeros(capacity, cupy.int32)
        self._began = cupy.zeros(1, cupy.uint64)
        self._fed = (int(self._picks.data.ptr), int(self._began.data.ptr))

    def _enter(self) -> None:
        """Device and stream are current per thread; any operation may come on another one."""
        load_cupy().cuda.Device(self.device.index).use()
        self._stream.use()

    def begin(self, rows: Rows) -> None:
        self._enter()
        handle: _RowHandle = rows.handle
        handle.send_tables(rows, self._staging)
        with self._staging.lend(12 * rows.count) as held:
            handle.write(rows, held.view(np.int32).reshape(3, rows.count))
            self._kernels.launch(
                STEP, "begin_step", (-(-rows.count // THREADS),), THREADS,
                (held.ctypes.data, rows.count, handle.tokens, handle.positions, handle.slots,
                 *self._fed),
                early=True,
            )  # fmt: skip

    def record(
        self,
        rows: Rows,
        counts: Sequence[int],
        ceiling: int,
        steps: Sequence[Callable[[], None]],
    ) -> None:
        self._enter()
        for count, reach in itertools.product(counts, reaches(ceiling)):
            rows.count = count
            rows.handle.reach, rows.handle.step, rows.handle.apart = reach, UNSENT, True
            for number, step in enumerate(steps):
                self._graphs.record((number, count), reach, step)

    def replay(self, rows: Rows, step: int) -> bool:
        return rows.handle.apart and self._graphs.replay((step, rows.count), rows.handle.reach)

    @contextmanager
    def guard(self, doing: str) -> Iterator[None]:
        cuda = load_cupy().cuda
        try:
            yield
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            message = f"CUDA device {self.device.index} failed while {doing}: {error}"
            raise CudaError(message) from error

    def notes(self) -> list[str]:
        device = self.device
        major, minor = device.architecture
        driver = f"{device.driver // 1000}.{device.driver % 1000 // 10}"
        said = f"{device.name}, compute capability {major}.{minor}, driver for CUDA {driver}"
        notes = [f"cuda backend: {said}"]
        if graphs := self._graphs:
            size = graphs.bytes / (1 << 20)
            notes.append(
                f"{len(graphs)} decode graphs recorded in {graphs.seconds:.1f} s, {size:.0f} MiB"
            )
        return notes

    # Construction ------------------------------------------------------------------------------

    def rows(self, slots: int, table_width: int) -> Rows:
        self._enter()
        rows = Rows(self.capacity, slots, table_width)
        rows.handle = _RowHandle(rows)
        return rows

    def tensor(self, width: int, *, wide: bool = False) -> CudaTensor:
        self._enter()
        return CudaTensor(self.capacity, width, wide=wide)

    def vector(self, values: F32Array) -> CudaVector:
        self._enter()
        return CudaVector(values)

    def matrix(self, parts: Sequence[Part]) -> CudaMatrix:
        self._enter()
        matrix = CudaMatrix.of(parts)
        self._project.make_room(matrix.columns)
        return matrix

    def cut(self, matrix: CudaMatrix, first: int, rows: int) -> CudaMatrix:
        return matrix.cut(first, rows)

    def dummy(
        self, form: Form, rows: int, columns: int, seed: int, multiple: int = 1
    ) -> CudaMatrix:
        self._enter()
        self._project.make_room(columns)
        return dummy_matrix(self._kernels, form, rows, columns, seed, multiple)

    def rotary_table(self, angles: F32Array, scale: float = 1.0) -> CudaVector:
        self._enter()
        table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        return CudaVector(table * np.float32(scale))

    def plane(
        self,
        blocks: int,
        block_tokens: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int = 0,
        *,
        code: RowCode = RowCode.FLOAT,
    ) -> CudaPlane:
        _require_floats(code)
        if value_dim not in (0, head_dim):
            raise ValueError(f"values of {value_dim} beside keys of {head_dim}: not on CUDA yet")
        require_room(head_dim, self.device.shared)
        self._enter()
        plane = CudaPlane(blocks, block_tokens, kv_heads, head_dim)
        plane.enter, plane.transfers = self._enter, self._transfers
        self._kernels.prepare(attention_units(head_dim))
        return plane

    def store(
        self,
        entries: int,
        rows: int,
        width: int,
        *,
        wide: bool = False,
        code: RowCode = RowCode.FLOAT,
        plain: int = 0,
    ) -> CudaStore:
        _require_floats(code)
        self._enter()
        store = CudaStore(entries, rows, width, padded_head(width), wide=wide)
        store.enter, store.transfers = self._enter, self._transfers
        return store

    def transfer_memory(self, size: int) -> memoryview:
        self._enter()
        return pinned(size)

    def fence_transfers(self) -> None:
        self._enter()
        self._transfers.fence()

    def finish_transfers(self) -> None:
        self._transfers.finish()

    def routes(self, top: int) -> Routes:
        self._enter()
        routes = Routes(0, top)
        routes.handle = RouteHandle(self.capacity, top)
        return routes

    def logits(self, rows: int, vocab: int) -> CudaTensor:
        self._enter()
        return CudaTensor(rows, vocab, wide=True)

    def open_ranks(self, make: Callable[[Kernels, Device, int], T]) -> T:
        """What `make(kernels, device, rows of a step)` opens towards the devices of other ranks."""
        self._enter()
        return make(self._kernels, self.device, self.capacity)

    def picker(self, rows: int, vocab: int, candidates: int) -> CudaPicker:
        self._enter()
        size = (rows, vocab, candidates)
        if (rows, vocab) not in self._tables:
            with on_stream(self._stream):
                tables = DeviceTables(self._kernels, self._staging, rows, vocab)
            self._tables[rows, vocab] = tables
        return CudaPicker(
            self._kernels, self._staging, self._stream, self._tables[rows, vocab], self._fed, size
        )

    # Rows --------------------------------------------------------------------------------------

    def embed(self, rows: Rows, table: CudaMatrix, out: CudaTensor, *, first: int = 0) -> None:
        data, stride, scale, scale_stride, factors = table.weights
        # Not early: what comes behind may read positions and tables before it waits.
        self._kernels.launch(
            ROWS, "embed", (rows.count, -(-out.width // THREADS)), THREADS,
            (rows.handle.tokens, first, table.rows, int(table.form), table.group, data, stride,
             scale, scale_stride, factors, out.width, *out.target),
        )  # fmt: skip

    def norm(self, rows: Rows, x: CudaTensor, norm: Norm, out: CudaTensor) -> None:
        self._project.normed(rows.count, x, norm, out)

    def join(self, rows: Rows, first: CudaTensor, second: CudaTensor, out: CudaTensor) -> None:
        for x, at in ((first, 0), (second, first.width)):
            self._kernels.launch(
                ROWS, "copy_rows", (rows.count, -(-x.width // THREADS)), THREADS,
                (*x.target, x.width, *out.target, at),
                early=True,
            )  # fmt: skip

    def write(self, x: CudaTensor, values: F32Array) -> None:
        self._enter()
        x.set(values)

    def _settle(self) -> None:
        """Wait before a copy to ordinary memory: the copy would wait holding the driver's lock,
        which a thread that is another rank may need first."""
        self._enter()
        self._stream.synchronize()

    def read(self, x: CudaTensor, count: int) -> F32Array:
        self._settle()
        return x.host(count)

    def read_logits(self, logits: CudaTensor, count: int) -> F32Array:
        self._settle()
        return logits.host(count)

    def read_routes(self, routes: Routes, count: int) -> tuple[I32Array, F32Array]:
        self._settle()
        handle: RouteHandle = routes.handle
        return fetched(handle.ids[:count]), fetched(handle.weights[:count])

    # Projections -------------------------------------------------------------------------------

    def linear(
        self,
        rows: Rows,
        x: CudaTensor,
        matrix: CudaMatrix,
        out: CudaTensor,
        *,
        norm: Norm | None = None,
        bias: CudaVector | None = None,
        add: bool = False,
    ) -> None:
        self._project.plain(rows.count, x, matrix, out, norm=norm, bias=bias, add=add)

    def gated(
        self,
        rows: Rows,
        x: CudaTensor,
        gate_up: CudaMatrix,
        out: CudaTensor,
        *,
        norm: Norm | None = None,
        limit: float = 0.0,
    ) -> None:
        _require_unlimited(limit)
        self._project.gated(rows.count, x, gate_up, out, norm=norm)

    def head(
        self,
        x: CudaTensor,
        index: Sequence[int],
        norm: Norm | None,
        table: CudaMatrix,
        out: CudaTensor,
    ) -> None:
        self._enter()
        at, wanted = int(self._index.data.ptr), list(index)
        if wanted == list(range(len(wanted))):
            # So it is in decode; a recorded step must send nothing.
            at = 0
        elif wanted != self._indexed:
            self._staging.send(at, np.array(wanted, np.int32))
            self._indexed = wanted
        self._project.plain(len(index), x, table, out, norm=norm, index=at)

    # Attention ---------------------------------------------------------------------------------

    def rotary_cache_write(
        self,
        rows: Rows,
        qkv: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        queries: CudaTensor,
    ) -> None:
        heads = attention.heads + 2 * attention.kv_heads
        self._kernels.launch(
            plane.unit, "rotary_cache_write", (rows.count, -(-heads // ROTARY_HEADS)),
            ROTARY_THREADS,
            (*qkv.target, *rows.handle.metadata, attention.heads, attention.kv_heads,
             attention.head_dim, *turning(attention), queries.pointer, queries.stride,
             *plane.addresses, plane.block_tokens),
            early=True,
        )  # fmt: skip

    def attend_paged(
        self,
        rows: Rows,
        queries: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        out: CudaTensor,
    ) -> None:
        self._attend.run(rows, queries, attention, plane, out)

    def attend_projected(
        self,
        rows: Rows,
        qkv: CudaTensor,
        attention: Attention,
        plane: CudaPlane,
        queries: CudaTensor,
        out: CudaTensor,
    ) -> None:
        if self._attend.takes_new(rows, attention):
            self._attend.run_new(rows, qkv, attention, plane, out)
            return
        self.rotary_cache_write(rows, qkv, attention, plane, queries)
        self.attend_paged(rows, queries, attention, plane, out)

    # Experts -----------------------------------------------------------------------------------

    def route(self, rows: Rows, x: CudaTensor, routing: Routing, routes: Routes) -> None:
        self._mixture.route(rows.count, x, routing, routes.handle)

    def moe(
        self,
        rows: Rows,
        x: CudaTensor,
        experts: Experts,
        routes: Routes,
        shared: CudaTensor | None,
        out: CudaTensor,
        *,
        add: bool = True,
    ) -> None:
        _require_unlimited(experts.limit)
        self._mixture.moe(rows.count, x, experts, routes.handle, shared, out, add=add)

    def moe_shared(
        self,
        rows: Rows,
        x: CudaTensor,
        experts: Experts,
        routes: Routes,
        shared: SharedExperts,
        room: tuple[CudaTensor, CudaTensor],
        out: CudaTensor,
        *,
        add: bool = True,
    ) -> None:
        _require_unlimited(max(experts.limit, shared.limit))
        if self._mixture.takes(rows.count, experts, shared):
            self._mixture.moe(rows.count, x, experts, routes.handle, shared, out, add=add)
            return
        inner, given = room
        self.gated(rows, x, shared.gate_up, inner)
        self.linear(rows, inner, shared.down, given)
        self.moe(rows, x, experts, routes, given, out, add=add)


def _require_unlimited(limit: float) -> None:
    if limit > 0.0:
        raise ValueError(f"gated products bounded by {limit}: not on CUDA yet")
