"""Adjusted rows and their candidates, on the device: only candidates travel to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels_numba.backend import Adjustment, F32Array, Picked
from kernels_numba.gpu.device import load_cupy
from kernels_numba.gpu.kernels import Kernels
from kernels_numba.gpu.memory import CudaTensor, Staging
from kernels_numba.gpu.source import PICK

CHUNK = 256
GROUP = 64
THREADS = 1024
SORT_BYTES = 8192 * 8
_ROW = np.dtype([("logits", np.uint64), ("temperature", np.float64)])


class CudaPicker:
    """All scratch and results stand in static buffers; one wait per `pick`, for the results."""

    def __init__(
        self, kernels: Kernels, staging: Staging, stream: Any, rows: int, vocab: int, wanted: int
    ) -> None:
        cupy = load_cupy()
        self._kernels, self._staging, self._stream = kernels, staging, stream
        self._size, self._wanted = vocab, wanted
        self._groups, self._chunks = -(-vocab // GROUP), -(-vocab // CHUNK)
        self._leaves = 1 << (self._chunks - 1).bit_length()
        with stream:
            self._adjusted = CudaTensor(rows, vocab, wide=True)
            self._rows = cupy.zeros(rows * 2, cupy.uint64)
            self._tops = cupy.zeros((rows, self._groups), cupy.float32)
            self._bounds = cupy.zeros((2, rows), cupy.float32)
            self._partials = cupy.zeros((rows, self._leaves), cupy.float64)
            self._counts = cupy.zeros(vocab, cupy.int32)
            self._bias = cupy.zeros(vocab, cupy.float32)
            self._mask = cupy.zeros(-(-vocab // 32), cupy.uint32)
            # One buffer, so that the results come in one copy: lse, values, ids, held, present.
            self._results = cupy.zeros(rows * (2 + 2 * wanted + 2), cupy.uint32)
        memory = cupy.cuda.alloc_pinned_memory(self._results.nbytes)
        self._host = np.frombuffer(memory, np.uint32, self._results.size)
        self._capacity = rows
        self._is_adjusted = [False] * rows

    def _field(self, name: str) -> tuple[int, int]:
        """(first word, words) of a field of the results."""
        rows, wanted = self._capacity, self._wanted
        sizes = {
            "lse": 2 * rows,
            "values": wanted * rows,
            "ids": wanted * rows,
            "held": rows,
            "present": rows,
        }
        names = list(sizes)
        first = sum(sizes[before] for before in names[: names.index(name)])
        return first, sizes[name]

    def _pointer(self, name: str) -> int:
        return int(self._results.data.ptr) + 4 * self._field(name)[0]

    def warm_up(self, logits: CudaTensor) -> None:
        size = self._size
        changed = Adjustment(
            1.0,
            np.zeros(size, np.int32),
            bias=np.zeros(size, np.float32),
            mask=np.zeros(-(-size // 32), np.uint32),
        )
        self.pick(logits, [changed])
        self.pick(logits, [Adjustment(1.0)])

    def pick(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> Picked:
        count = len(rows)
        if count:
            with self._stream:
                self._enqueue(logits, rows)
                runtime = load_cupy().cuda.runtime
                runtime.memcpyAsync(
                    self._host.ctypes.data,
                    self._results.data.ptr,
                    self._results.nbytes,
                    runtime.memcpyDeviceToHost,
                    self._stream.ptr,
                )
            self._stream.synchronize()
        fields = {
            name: self._host[first : first + words].copy()
            for name in ("lse", "values", "ids", "held", "present")
            for first, words in [self._field(name)]
        }
        present = fields["present"].view(np.int32)[:count]
        for r, adjustment in enumerate(rows):
            if adjustment.mask is None:
                present[r] = self._size
        shape = (self._capacity, self._wanted)
        return Picked(
            fields["ids"].view(np.int32).reshape(shape)[:count],
            fields["values"].view(np.float32).reshape(shape)[:count],
            fields["held"].view(np.int32)[:count],
            present,
            fields["lse"].view(np.float64)[:count],
        )

    def _enqueue(self, logits: CudaTensor, rows: Sequence[Adjustment]) -> None:
        count, size, launch = len(rows), self._size, self._kernels.launch
        first, words = self._field("present")
        self._results[first : first + words].fill(0)
        table = np.zeros(count, _ROW)
        for r, adjustment in enumerate(rows):
            self._is_adjusted[r] = adjustment.changes
            source = self._adjusted if adjustment.changes else logits
            table[r] = (source.pointer + 4 * source.stride * r, adjustment.temperature)
            if adjustment.changes:
                self._adjust(logits, r, adjustment)
        at = int(self._rows.data.ptr)
        self._staging.send(at, table.view(np.uint64))
        tops, groups = int(self._tops.data.ptr), self._groups
        best = int(self._bounds.data.ptr)
        bounds, partials = best + 4 * self._capacity, int(self._partials.data.ptr)
        launch(PICK, "group_tops", (self._chunks, count), CHUNK, (at, size, tops, groups))
        launch(PICK, "row_bounds", (count,), THREADS, (tops, groups, self._wanted, best, bounds))
        launch(
            PICK, "chunk_sums", (self._chunks, count), CHUNK,
            (at, size, best, partials, self._leaves),
        )  # fmt: skip
        launch(
            PICK, "finish_rows", (count,), THREADS,
            (at, size, tops, groups, best, bounds, partials, self._chunks, self._leaves,
             self._wanted, self._pointer("ids"), self._pointer("values"), self._pointer("held"),
             self._pointer("lse")),
            SORT_BYTES,
        )  # fmt: skip

    def _adjust(self, logits: CudaTensor, r: int, adjustment: Adjustment) -> None:
        pointers = []
        for held, values in (
            (self._counts, adjustment.counts),
            (self._bias, adjustment.bias),
            (self._mask, adjustment.mask),
        ):
            if values is not None:
                self._staging.send(int(held.data.ptr), values)
            pointers.append(0 if values is None else int(held.data.ptr))
        counts, bias, mask = pointers
        self._kernels.launch(
            PICK, "adjust_row", (self._chunks,), CHUNK,
            (logits.pointer + 4 * logits.stride * r, self._size, counts, adjustment.repetition,
             adjustment.frequency, adjustment.presence, bias, mask,
             self._adjusted.pointer + 4 * self._adjusted.stride * r,
             self._pointer("present") + 4 * r),
        )  # fmt: skip

    def adjusted(self, logits: CudaTensor, rows: Sequence[int]) -> F32Array:
        out = np.empty((len(rows), self._size), np.float32)
        with self._stream:
            for place, r in enumerate(rows):
                source = self._adjusted if self._is_adjusted[r] else logits
                out[place] = source.array[r, : self._size].get()
        return out
