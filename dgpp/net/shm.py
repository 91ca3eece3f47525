"""Collectives of ranks on one host through shared memory: the CPU's, and every rank's host side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.net.collective import CollectiveStatistics, Wire, require_same_width
from dgpp.net.errors import (
    CollectiveError,
    CollectiveMismatchError,
    PeerLeftError,
)
from dgpp.net.futex import futex_wait, futex_wake
from dgpp.net.slab import SLOT_BYTES, Slab
from dgpp.net.spins import spins_of
from dgpp.net.tags import Kind, describe, mismatch, tag
from dgpp.net.tally import Tally
from dgpp.net.watch import (
    LOADING,
    LOOK_S,
    RENDEZVOUS_S,
    SERVING,
    Beater,
    Limits,
    Patience,
    await_all,
)
from kernels_numba.backend import Backend, Tensor
from kernels_numba.cpu import exchange
from kernels_numba.cpu.memory import Block, allocate
from kernels_numba.meeting import GENERATION
from kernels_numba.picks import Picker
from kernels_numba.weights import VECTOR


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
        slots = [[self.slab.slot(of, turn) for of in range(world)] for turn in range(2)]
        self._slots = np.array(slots, np.int64)
        self._parts = [int(turn.ctypes.data) for turn in self._slots]
        self._spins = spins_of(world)
        self._sums = Block(allocate((1, VECTOR), np.float32))
        self._tally = Tally(world)
        self._broken: CollectiveError | None = None
        self._closed = False

    def join(self, timeout_s: float = RENDEZVOUS_S) -> None:
        """Meet the other ranks. Raises PeerAbsentError naming those that did not come."""
        slab = self.slab
        slab.enter()
        self.beater.start()
        await_all(slab, self.world, timeout_s)
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
        return self._tally.statistics(self.name)

    # Operations --------------------------------------------------------------------------------

    def partial(self, backend: Backend, width: int) -> Tensor:
        return backend.tensor(width, wide=True)

    def merge(self, picker: Picker, slices: Sequence[range]) -> bool:
        return False

    def all_reduce(self, count: int, partial: Block, out: Block, *, add: bool = True) -> None:
        width, wire = partial.width, int(self._wire)
        require_same_width(width, out.width)
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
            generation = self._next(Kind.ALL_REDUCE, wire * rows * width)
            exchange.put_rows(
                partial.address + first * partial.stride, partial.stride, rows, width, wire,
                self.slab.slot(self.rank, generation),
            )  # fmt: skip
            self._meet(Kind.ALL_REDUCE, wire * rows * width)
            exchange.sum_rows(
                self._parts[generation & 1], self.world, rows, width, wire,
                self._sums.address, out.address + first * out.stride, out.stride, int(add),
            )  # fmt: skip

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sent = np.ascontiguousarray(values)
        flat = sent.reshape(-1).view(np.uint8)
        out = np.empty((self.world, flat.size), np.uint8)
        step = self.slab.slot_bytes
        for first in range(0, max(flat.size, 1), step):
            part = flat[first : first + step]
            generation = self._next(Kind.ALL_GATHER, part.size)
            slots = self.slab.slots[:, generation & 1, : part.size]
            slots[self.rank] = part
            self._meet(Kind.ALL_GATHER, part.size)
            out[:, first : first + part.size] = slots
        return out.view(sent.dtype).reshape(self.world, *sent.shape)

    def barrier(self) -> None:
        self._next(Kind.BARRIER, 0)
        self._meet(Kind.BARRIER, 0)

    # Meeting -----------------------------------------------------------------------------------

    def _next(self, kind: Kind, size: int) -> int:
        """Begin the next collective."""
        if self._closed:
            raise CollectiveError(f"collective: rank {self.rank} has left")
        self.check()
        self.generation += 1
        self._tally.begin(kind, size)
        return self.generation

    def _meet(self, kind: Kind, size: int) -> None:
        """Publish this rank's part and return when everyone's is there."""
        generation = self.generation
        mine = tag(kind, self._wire, size)
        lines, world = self.slab.lines, self.world
        if exchange.publish(self._line, mine, generation):
            futex_wake(self._line + GENERATION)
        if exchange.missing(lines, world, generation, self._spins) >= 0:
            self._wait(f"{describe(mine)} (number {generation})")
        other = exchange.other_tag(lines, world, generation, mine)
        if other >= 0:
            theirs = describe(exchange.tag_of(self.slab.line(other), generation))
            said = mismatch(generation, other, theirs, self.rank, describe(mine))
            self._fail(other, CollectiveMismatchError(said))

    def _wait(self, what: str) -> None:
        began = time.perf_counter()
        patience = Patience(self.slab, self._limits, what)
        lines, world, generation = self.slab.lines, self.world, self.generation
        rank = exchange.missing(lines, world, generation, 0)
        self._tally.late(rank)
        while rank >= 0:
            if not self._sleep_on(rank):
                self._heed_blame(what)
                try:
                    patience.look(rank)
                except CollectiveError as error:
                    self._fail(rank, error)
            rank = exchange.missing(lines, world, generation, 0)
        self._tally.waited(time.perf_counter() - began)

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
