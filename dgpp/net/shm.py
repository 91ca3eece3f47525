"""Collectives of ranks on one host through shared memory: the CPU's, and every rank's host side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dgpp.net.collective import Wire
from dgpp.net.futex import futex_wait, futex_wake
from dgpp.net.host import Bytes, HostCollective, too_wide
from dgpp.net.rows import Sum
from dgpp.net.slab import SLOT_BYTES, Slab
from dgpp.net.spins import spins_of
from dgpp.net.tags import Kind, describe
from dgpp.net.watch import LOADING, LOOK_S, RENDEZVOUS_S, SERVING, Limits, Patience
from kernels_numba.cpu import exchange
from kernels_numba.cpu.memory import Block, allocate
from kernels_numba.meeting import GENERATION
from kernels_numba.weights import VECTOR


class ShmCollective(HostCollective):
    """Over a slab (`dgpp.net.slab.create_slab`)."""

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
        self.slab = Slab(fd, rank, world, slot_bytes)
        super().__init__(self.slab, wire, loading, serving)
        self._line = self.slab.line(rank)
        slots = [[self.slab.slot(of, turn) for of in range(world)] for turn in range(2)]
        self._slots = np.array(slots, np.int64)
        self._parts = [int(turn.ctypes.data) for turn in self._slots]
        self._spins = spins_of(world)
        self._sums = Block(allocate((1, VECTOR), np.float32))

    def join(self, timeout_s: float = RENDEZVOUS_S) -> None:
        self._enter(timeout_s)
        for rank in range(self.world):
            self.slab.require_same_shape(rank)
        self.barrier()

    def barrier(self) -> None:
        self._meet(self._next(Kind.BARRIER, 0))

    def _summing(self, total: Sum) -> tuple[int, Callable[[Sum], None]]:
        row = total.wire * total.width
        room = self.slab.slot_bytes // row
        if room == 0:
            raise too_wide(row, f"a slot of {self.slab.slot_bytes}")
        if self._sums.width < total.width:
            self._sums = Block(allocate((1, -(-total.width // VECTOR) * VECTOR), np.float32))
        return room, self._reduce

    def _reduce(self, piece: Sum) -> None:
        mine = self._next(Kind.ALL_REDUCE, piece.bytes)
        exchange.put_rows(
            piece.partial, piece.partial_stride, piece.rows, piece.width, piece.wire,
            self.slab.slot(self.rank, self.generation),
        )  # fmt: skip
        self._meet(mine)
        exchange.sum_rows(
            self._parts[self.generation & 1], self.world, piece.rows, piece.width, piece.wire,
            self._sums.address, piece.out, piece.out_stride, int(piece.add),
        )  # fmt: skip

    def _gathering(self, size: int) -> tuple[int, Callable[[Bytes, Bytes], None]]:
        return self.slab.slot_bytes, self._gather

    def _gather(self, part: Bytes, out: Bytes) -> None:
        mine = self._next(Kind.ALL_GATHER, part.size)
        slots = self.slab.slots[:, self.generation & 1, : part.size]
        slots[self.rank] = part
        self._meet(mine)
        out[:] = slots

    def _let_go(self) -> None:
        """Nobody does."""

    # Meeting -----------------------------------------------------------------------------------

    def _meet(self, mine: int) -> None:
        """Publish this rank's part and return when everyone's is there."""
        lines, world, generation = self.slab.lines, self.world, self.generation
        if exchange.publish(self._line, mine, generation):
            futex_wake(self._line + GENERATION)
        if exchange.missing(lines, world, generation, self._spins) >= 0:
            self._wait(f"{describe(mine)} (number {generation})")
        other = exchange.other_tag(lines, world, generation, mine)
        if other >= 0:
            theirs = describe(exchange.tag_of(self.slab.line(other), generation))
            self._fail(other, self._mismatch(other, theirs, mine))

    def _wait(self, what: str) -> None:
        def look(patience: Patience, rank: int) -> None:
            self._heed_blame(what)
            self._look(patience, rank)

        missing = partial(exchange.missing, self.slab.lines, self.world, self.generation, 0)
        self._wait_for(what, missing, self._sleep_on, look)

    def _sleep_on(self, rank: int) -> bool:
        """Sleep until `rank` publishes something; False when it did not for LOOK_S."""
        line = self.slab.line(rank)
        seen = exchange.lie_down(line)
        try:
            return seen >= self.generation or futex_wait(line + GENERATION, seen, LOOK_S)
        finally:
            exchange.get_up(line)
