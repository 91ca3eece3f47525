"""Collectives of ranks on one host through shared memory: the CPU's, and every rank's host side."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.net.collective import CollectiveStatistics, Wire
from dgpp.net.errors import (
    CollectiveError,
    CollectiveMismatchError,
    PeerAbsentError,
    PeerLeftError,
)
from dgpp.net.futex import futex_wait, futex_wake
from dgpp.net.slab import SLOT_BYTES, Slab
from dgpp.net.watch import LOADING, LOOK_S, SERVING, Beater, Limits, Patience
from kernels_numba.backend import Backend, Picker, Tensor
from kernels_numba.cpu import exchange
from kernels_numba.cpu.memory import Block, allocate
from kernels_numba.meeting import GENERATION, LINE_BYTES
from kernels_numba.weights import VECTOR

RENDEZVOUS_S = 120.0
SPIN_US = 20.0
"""How long a rank polls before it sleeps, where the ranks have a CPU each."""
_JOIN_POLL_S = 0.01
_SPINS = 2000


class _Kind(enum.IntEnum):
    ALL_REDUCE = 1
    ALL_GATHER = 2
    BARRIER = 3


class ShmCollective:
    """Implements `dgpp.net.collective.Collective` over a slab (`dgpp.net.slab.create_slab`).

    `join` first. `serving` are the limits once `serve` was called; before, `loading` holds.
    Tensors are the CPU backend's. One thread uses it.
    """

    name = "shm"

    def __init__(
        self,
        fd: int,
        rank: int,
        world: int,
        *,
        slot_bytes: int = SLOT_BYTES,
        wire: Wire = Wire.F32,
        loading: Limits = LOADING,
        serving: Limits = SERVING,
    ) -> None:
        self.rank, self.world = rank, world
        self.generation = 0
        self.beater = Beater(self._beat)
        self._wire = wire
        self._serving, self._limits = serving, loading
        self.slab = Slab(fd, rank, world, slot_bytes)
        self._line = self.slab.line(rank)
        self._spins = _spins(world)
        self._sums = Block(allocate((1, VECTOR), np.float32))
        self._counts = dict.fromkeys(_Kind, 0)
        self._bytes = self._waits = 0
        self._waited_s = 0.0
        self._late = [0] * world
        self._broken: CollectiveError | None = None
        self._closed = False

    def join(self, timeout_s: float = RENDEZVOUS_S) -> None:
        """Meet the other ranks. Raises PeerAbsentError naming those that did not come."""
        slab = self.slab
        slab.enter()
        self.beater.start()
        tries = max(1, int(timeout_s / _JOIN_POLL_S))
        while absent := [rank for rank in range(self.world) if not slab.pid(rank)]:
            if tries == 0:
                names = ", ".join(f"rank {rank}" for rank in absent)
                raise PeerAbsentError(
                    f"collective: {names} of {self.world} did not join within {timeout_s:g} s "
                    "(engine.rendezvous_timeout_ms)"
                )
            tries -= 1
            time.sleep(_JOIN_POLL_S)
        for rank in range(self.world):
            slab.require_same_shape(rank)
        self.barrier()

    def serve(self) -> None:
        self._limits = self._serving

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.slab.leave()
            self.beater.stop()
            self.slab.close()

    def statistics(self) -> CollectiveStatistics:
        counts = self._counts
        return CollectiveStatistics(
            path=self.name,
            all_reduces=counts[_Kind.ALL_REDUCE],
            all_gathers=counts[_Kind.ALL_GATHER],
            barriers=counts[_Kind.BARRIER],
            bytes=self._bytes,
            waits=self._waits,
            waited_s=self._waited_s,
            late=tuple(self._late),
        )

    # Operations --------------------------------------------------------------------------------

    def partial(self, backend: Backend, width: int) -> Tensor:
        return backend.tensor(width, wide=True)

    def merge(self, picker: Picker, slices: Sequence[range]) -> bool:
        return False

    def all_reduce(self, count: int, partial: Block, out: Block, *, add: bool = True) -> None:
        width, wire = partial.width, int(self._wire)
        if out.width != width:
            raise CollectiveMismatchError(
                f"collective: rows of {width} values cannot be summed into rows of {out.width}"
            )
        room = self.slab.slot_bytes // (wire * width)
        if room == 0:
            raise CollectiveMismatchError(
                f"collective: a row of {wire * width} bytes exceeds a slot of "
                f"{self.slab.slot_bytes}"
            )
        if self._sums.width < width:
            self._sums = Block(allocate((1, -(-width // VECTOR) * VECTOR), np.float32))
        for first in range(0, count, room):
            rows = min(room, count - first)
            generation = self._next(_Kind.ALL_REDUCE, wire * rows * width)
            exchange.put_rows(
                partial.address + first * partial.stride, partial.stride, rows, width, wire,
                self.slab.slot(self.rank, generation),
            )  # fmt: skip
            self._meet(_Kind.ALL_REDUCE, wire * rows * width)
            exchange.sum_rows(
                self.slab.slot(0, generation), 2 * self.slab.slot_bytes, self.world, rows, width,
                wire, self._sums.address, out.address + first * out.stride, out.stride, int(add),
            )  # fmt: skip

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sent = np.ascontiguousarray(values)
        flat = sent.reshape(-1).view(np.uint8)
        out = np.empty((self.world, flat.size), np.uint8)
        step = self.slab.slot_bytes
        for first in range(0, max(flat.size, 1), step):
            part = flat[first : first + step]
            generation = self._next(_Kind.ALL_GATHER, part.size)
            slots = self.slab.slots[:, generation & 1, : part.size]
            slots[self.rank] = part
            self._meet(_Kind.ALL_GATHER, part.size)
            out[:, first : first + part.size] = slots
        return out.view(sent.dtype).reshape(self.world, *sent.shape)

    def barrier(self) -> None:
        self._next(_Kind.BARRIER, 0)
        self._meet(_Kind.BARRIER, 0)

    # Meeting -----------------------------------------------------------------------------------

    def _next(self, kind: _Kind, size: int) -> int:
        """Begin the next collective."""
        if self._closed:
            raise CollectiveError(f"collective: rank {self.rank} has left")
        self.check()
        self.generation += 1
        self._counts[kind] += 1
        self._bytes += size
        return self.generation

    def _meet(self, kind: _Kind, size: int) -> None:
        """Publish this rank's part and return when everyone's is there."""
        generation = self.generation
        tag = kind << 56 | self._wire << 48 | size
        lines, world = self.slab.lines, self.world
        if exchange.publish(self._line, tag, generation):
            futex_wake(self._line + GENERATION)
        if exchange.missing(lines, world, generation, self._spins) >= 0:
            self._wait(f"{_describe(tag)} (number {generation})")
        other = exchange.other_tag(lines, world, generation, tag)
        if other >= 0:
            theirs = exchange.tag_of(self.slab.line(other), generation)
            self._fail(
                other,
                CollectiveMismatchError(
                    f"collective: number {generation} is {_describe(theirs)} on rank {other} and "
                    f"{_describe(tag)} on rank {self.rank}"
                ),
            )

    def _wait(self, what: str) -> None:
        began = time.perf_counter()
        patience = Patience(self.slab, self._limits, what)
        lines, world, generation = self.slab.lines, self.world, self.generation
        rank = exchange.missing(lines, world, generation, 0)
        self._waits += 1
        if rank >= 0:
            self._late[rank] += 1
        while rank >= 0:
            if not self._sleep_on(rank):
                self._heed_blame(what)
                try:
                    patience.look(rank)
                except CollectiveError as error:
                    self._fail(rank, error)
            rank = exchange.missing(lines, world, generation, 0)
        self._waited_s += time.perf_counter() - began

    def _sleep_on(self, rank: int) -> bool:
        """Sleep until `rank` publishes something; False when it did not for LOOK_S."""
        line = self.slab.line(rank)
        seen = exchange.lie_down(line)
        try:
            return seen >= self.generation or futex_wait(line + GENERATION, seen, LOOK_S)
        finally:
            exchange.get_up(line)

    def _heed_blame(self, what: str) -> None:
        for rank in range(self.world):
            blamed = self.slab.blamed(rank)
            if rank != self.rank and blamed >= 0:
                self._fail(
                    blamed,
                    PeerLeftError(f"collective: rank {rank} found rank {blamed} broken, at {what}"),
                )

    def _fail(self, rank: int, error: CollectiveError) -> None:
        """Nothing more is done in this world: the others hear of it when they next look."""
        self._broken = error
        self.slab.blame(rank)
        raise error

    def _beat(self) -> None:
        self.slab.beat()


def _describe(tag: int) -> str:
    names = {1: "an all-reduce", 2: "an all-gather", 3: "a barrier"}
    kind, size = tag >> 56 & 0xFF, tag & 0xFFFFFFFFFFFF
    name = names.get(kind, "nothing")
    if kind == _Kind.BARRIER:
        return name
    wire = "bf16 " if tag >> 48 & 0xFF == Wire.BF16 and kind == _Kind.ALL_REDUCE else ""
    return f"{name} of {size} {wire}bytes"


def _spins(world: int) -> int:
    """Looks that take about SPIN_US; none where ranks share CPUs and a spin holds up its peer."""
    if len(os.sched_getaffinity(0)) < world:
        return 0
    line = np.zeros(LINE_BYTES // 8, np.int64)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        exchange.missing(int(line.ctypes.data), 1, 1, _SPINS)
        times.append(time.perf_counter() - began)
    return max(1, int(_SPINS * SPIN_US * 1e-6 / min(times)))
