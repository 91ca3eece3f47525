"""Adjusted rows and their candidates, on the device: only candidates travel to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels_numba.backend import F32Array
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor, Staging
from kernels_numba.gpu.ranks import CandidateMerge
from kernels_numba.gpu.slot_tables import DeviceTables
from kernels_numba.gpu.source import PICK, STEP
from kernels_numba.gpu.stream import on_stream
from kernels_numba.picks import Adjustment, Draw, Picked

CHUNK = 256
GROUP = 64
THREADS, TOPS_THREADS = 1024, 256
SCAN_THREADS, SUM_THREADS = 512, 128
"""Of a block that finds bounds and sums, and of those for each chunk of its row."""
MOST_KEYS = MOST_CHUNKS = 8192
MOST_IDS = MOST_CHUNKS * CHUNK
"""Of a row: of a rank's slice of the vocabulary."""
KEY_BYTES = MOST_KEYS * 10
"""Shared memory for the keys that are sorted, and for the groups that they come from."""
DRAW_THREADS = 256
"""The most candidates of a row: the draw has a thread for each."""
_ROW = np.dtype([("logits", np.uint64), ("temperature", np.float64)])
_CHANGE = np.dtype(
    [
        *((name, np.uint64) for name in ("logits", "counts", "bias", "mask", "out", "present")),
        *((name, np.float64) for name in ("repetition", "frequency", "presence")),
    ]
)
_DRAW = np.dtype(
    [
        ("u", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("temperature", np.float64),
        ("present", np.int64),
        ("top_k", np.int32),
        ("greedy", np.int32),
        ("slot", np.int32),
        ("unused", np.int32),
    ]
)


def draw_table(rows: Sequence[tuple[Draw | None, float, int]]) -> npt.NDArray[Any]:
    """draw.cuh's `Draw` of each row: how it is drawn, its temperature, how many ids it has."""
    table = np.zeros(len(rows), _DRAW)
    for r, (draw, temperature, present) in enumerate(rows):
        if draw is None:
            table[r]["slot"] = -1
        else:
            table[r] = (
                draw.u, draw.top_p, draw.log_min_p, np.float32(temperature), present,
                min(draw.top_k, present), draw.greedy, draw.slot, 0,
            )  # fmt: skip
    return table


class CudaPicker:
    """All scratch and results stand in static buffers of its own; only `collect` and `adjusted`
    wait, on whatever thread they are called.

    `picks` and `began` are device addresses: the last pick of every slot, which rows of the next
    step feed, and when the step began. Whole rows are read on a stream of their own, so that they
    need not wait for the step that follows. What is copied to and from the host goes there as well.
    """

    def __init__(
        self,
        kernels: Kernels,
        staging: Staging,
        stream: Any,
        tables: DeviceTables,
        fed: tuple[int, int],
        size: tuple[int, int, int],
    ) -> None:
        cupy = load_cupy()
        rows, vocab, wanted = size
        if wanted > DRAW_THREADS:
            raise ValueError(f"{wanted} candidates a row: at most {DRAW_THREADS}")
        self._cupy = cupy
        self._kernels, self._staging, self._stream = kernels, staging, stream
        self._tables = tables
        self._picks, self._began = fed
        self._device = cupy.cuda.Device()
        self._side = cupy.cuda.Stream(non_blocking=True)
        self._done = cupy.cuda.Event(block=True, disable_timing=True)
        self._drawn, self._told = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._size, self._wanted = vocab, wanted
        self._groups, self._chunks = -(-vocab // GROUP), -(-vocab // CHUNK)
        self._leaves = 1 << (self._chunks - 1).bit_length()
        if self._leaves > MOST_CHUNKS:
            raise ValueError(f"{vocab} ids: at most {MOST_IDS}")
        with on_stream(stream):
            self._adjusted = CudaTensor(rows, vocab, wide=True)
            # Of each row what `pick.cu` wants, what `draw.cuh` wants, what changes its logits.
            each = _ROW.itemsize + _DRAW.itemsize + _CHANGE.itemsize
            self._rows = cupy.zeros(rows * each, cupy.uint8)
            self._tops = cupy.zeros((rows, self._groups), cupy.float32)
            self._bounds = cupy.zeros((2, rows), cupy.float32)
            self._partials = cupy.zeros((rows, self._leaves), cupy.float64)
            self._masks = cupy.zeros((rows, -(-vocab // 32)), cupy.uint32)
            self._fields = self._lay_out(rows, wanted)
            # One buffer of whole eight bytes, so that the results come in one copy.
            words = sum(words for _, words in self._fields.values())
            self._results = cupy.zeros(words + words % 2, np.uint32)
        memory = cupy.cuda.alloc_pinned_memory(self._results.nbytes)
        self._host = np.frombuffer(memory, np.uint32, self._results.size)
        self._capacity = rows
        self._is_adjusted = [False] * rows
        self._masked: list[bool] = []
        self._whole = vocab
        self._merge: CandidateMerge | None = None

    def merge_over(self, ranks: Any, starts: Sequence[int], whole: int) -> None:
        """From now on results are those of rows of `whole` ids, of which every rank of `ranks` has
        a slice that begins at its `starts`."""
        self._whole = whole
        places = [4 * self._fields[name][0] for name in ("values", "ids", "held", "present")]
        self._merge = CandidateMerge(
            self._kernels, ranks, starts, self._results, (self._wanted, *places)
        )

    @staticmethod
    def _lay_out(rows: int, wanted: int) -> dict[str, tuple[int, int]]:
        """(first word, words) of each field of the results; those of eight bytes come first."""
        sizes = {
            "lse": 2 * rows,
            "times": 4,
            "values": wanted * rows,
            "ids": wanted * rows,
            "held": rows,
            "present": rows,
            "picks": rows,
        }
        fields, at = {}, 0
        for name, words in sizes.items():
            fields[name] = (at, words)
            at += words
        return fields

    def _pointer(self, name: str) -> int:
        return int(self._results.data.ptr) + 4 * self._fields[name][0]

    def warm_up(self, logits: CudaTensor) -> None:
        size = self._size
        changed = Adjustment(
            1.0,
            np.zeros(size, np.int32),
            bias=np.zeros(size, np.float32),
            mask=np.zeros(-(-size // 32), np.uint32),
        )
        sampled = Adjustment(1.0, draw=Draw(0, 0.5, 4, -1.0, 0.5, greedy=False))
        for adjustment in (changed, sampled):
            self.launch(logits, [adjustment])
            self.collect()

    def launch(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> None:
        self._masked = [adjustment.mask is not None for adjustment in rows]
        with on_stream(self._stream):
            if not rows:
                self._done.record(self._stream)
                return
            self._enqueue(logits, rows)
            self._drawn.record(self._stream)
        # Beside the next step, which so begins at once.
        self._side.wait_event(self._drawn)
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(
            self._host.ctypes.data,
            self._results.data.ptr,
            self._results.nbytes,
            runtime.memcpyDeviceToHost,
            self._side.ptr,
        )
        self._done.record(self._side)

    def collect(self) -> Picked:
        self._device.use()
        self._done.synchronize()
        count = len(self._masked)
        fields = {
            name: self._host[first : first + words].copy()
            for name, (first, words) in self._fields.items()
        }
        present = fields["present"].view(np.int32)[:count]
        present[~np.array(self._masked, bool)] = self._whole
        shape = (self._capacity, self._wanted)
        began, ended = fields["times"].view(np.uint64).tolist() if count else (0, 0)
        return Picked(
            fields["ids"].view(np.int32).reshape(shape)[:count],
            fields["values"].view(np.float32).reshape(shape)[:count],
            fields["held"].view(np.int32)[:count],
            present,
            fields["lse"].view(np.float64)[:count],
            fields["picks"].view(np.int32)[:count],
            began,
            ended,
        )

    def _send(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> tuple[int, int, int, int]:
        """Where the device has what `rows` are picked by, how they are drawn, and how many of them
        change how, which stands behind. All of it is there before what the stream does next."""
        table = np.zeros(len(rows), _ROW)
        for r, adjustment in enumerate(rows):
            self._is_adjusted[r] = adjustment.changes
            source = self._adjusted if adjustment.changes else logits
            table[r] = (source.pointer + 4 * source.stride * r, adjustment.temperature)
        # How many ids a mask leaves is known on the device alone, so masked rows are not drawn.
        draws = draw_table(
            [(None if a.mask is not None else a.draw, a.temperature, self._whole) for a in rows]
        )
        changes = self._changes(logits, rows)
        at = int(self._rows.data.ptr)
        sent = [part.view(np.uint8) for part in (table, draws, changes)]
        # Beside the forward pass, which is enqueued already.
        with on_stream(self._side):
            self._staging.send(at, np.concatenate(sent))
            for r, adjustment in enumerate(rows):
                if adjustment.mask is not None:
                    self._staging.send(int(self._masks[r].data.ptr), adjustment.mask)
        self._told.record(self._side)
        self._stream.wait_event(self._told)
        drawn_at = at + table.nbytes
        return at, drawn_at, len(changes), drawn_at + draws.nbytes

    def _enqueue(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> None:
        count, size, launch = len(rows), self._size, self._kernels.launch
        if any(self._masked):
            runtime = self._cupy.cuda.runtime
            present = 4 * self._fields["present"][1]
            runtime.memsetAsync(self._pointer("present"), 0, present, self._stream.ptr)
        at, drawn_at, changed, changed_at = self._send(logits, rows)
        if changed:
            launch(PICK, "adjust_rows", (self._chunks, changed), CHUNK, (changed_at, size))
        tops, groups = int(self._tops.data.ptr), self._groups
        best = int(self._bounds.data.ptr)
        bounds, partials = best + 4 * self._capacity, int(self._partials.data.ptr)
        ids, values, held, lse = map(self._pointer, ("ids", "values", "held", "lse"))
        # The first does not start early: those behind it read rows and logits before they wait, and
        # what ranks gather behind them (the ids that masks leave) is there when it begins.
        launch(
            PICK, "group_tops", (-(-groups * GROUP // (4 * TOPS_THREADS)), count), TOPS_THREADS,
            (at, size, tops, groups),
        )  # fmt: skip
        launch(
            PICK, "row_bounds_and_sums",
            (1 + -(-self._chunks * SUM_THREADS // SCAN_THREADS), count), SCAN_THREADS,
            (at, size, tops, groups, self._wanted, best, bounds, partials, self._chunks,
             self._leaves),
            early=True,
        )  # fmt: skip
        launch(
            PICK, "finish_rows", (count,), THREADS,
            (at, size, tops, groups, best, bounds, partials, self._chunks, self._leaves,
             self._wanted, ids, values, held, lse),
            KEY_BYTES,
            early=True,
        )  # fmt: skip
        if self._merge is not None:
            self._merge.run(count)
        launch(
            STEP, "draw_rows", (count,), DRAW_THREADS,
            (drawn_at, self._wanted, ids, values, held, lse, self._pointer("picks"), self._picks,
             self._began, self._pointer("times")),
            early=True,
        )  # fmt: skip

    def _changes(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> npt.NDArray[Any]:
        """pick.cu's `Change` of each row that has one; its tables are up to date then."""
        if not any(adjustment.changes for adjustment in rows):
            return np.zeros(0, _CHANGE)
        held = self._tables.place(rows)
        changes = [
            (
                logits.pointer + 4 * logits.stride * r,
                *held[r],
                0 if adjustment.mask is None else int(self._masks[r].data.ptr),
                self._adjusted.pointer + 4 * self._adjusted.stride * r,
                self._pointer("present") + 4 * r,
                adjustment.repetition,
                adjustment.frequency,
                adjustment.presence,
            )
            for r, adjustment in enumerate(rows)
            if adjustment.changes
        ]
        return np.array(changes, _CHANGE)

    def adjusted(self, logits: CudaTensor, rows: Sequence[int]) -> F32Array:
        self._device.use()
        self._done.synchronize()
        out = np.empty((len(rows), self._size), np.float32)
        for place, r in enumerate(rows):
            source = self._adjusted if self._is_adjusted[r] else logits
            source.array[r, : self._size].get(stream=self._side, out=out[place])
        return out
