"""Collectives over the RoCE bus: the engine's side of it, in the CPU's memory."""

from __future__ import annotations

import math
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
from dgpp.net.futex import futex_wait
from dgpp.net.spins import spins_of
from dgpp.net.tags import Kind, describe, mismatch, tag
from dgpp.net.tally import Tally
from dgpp.net.verbs import sums
from dgpp.net.verbs.errors import BusError, BusStartError, PollerError
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.slab import BusFiles, BusSlab, PollerBeats, State
from dgpp.net.verbs.slots import Ends, Mark, OtherCollectiveError, Until
from dgpp.net.verbs.sums import Scratch, Steps, Sum
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
from kernels_numba.cpu import bus
from kernels_numba.cpu.memory import Block
from kernels_numba.picks import Picker

_JOIN_POLL_S = 0.01


class VerbsCollective:
    """Implements `dgpp.net.collective.Collective` over the bus that this rank's `Poller` runs.

    `files` are what both share (`create_bus`), `layout` the same on all ranks. `join` first.
    `serving` are the limits once `serve` was called; before, `loading` holds. Tensors are the CPU
    backend's. One thread uses it.
    """

    name = "verbs"

    def __init__(
        self,
        files: BusFiles,
        rank: int,
        layout: Layout,
        *,
        wire: Wire = Wire.F32,
        loading: Limits = LOADING,
        serving: Limits = SERVING,
    ) -> None:
        self.rank, self.world = rank, layout.world
        self.generation = 0
        """Of the last collective; it has 63 bits and is not used up."""
        self._wire = wire
        self._serving, self._limits = serving, loading
        self.slab = BusSlab(files, rank, layout)
        self.beater = Beater(self.slab.beat)
        self._ends = Ends(self.slab)
        self._scratch = Scratch(self.world)
        # This rank's engine and poller.
        self._spins = spins_of(2)
        self._tally = Tally(self.world)
        self._broken: CollectiveError | None = None
        self._closed = False

    def join(self, timeout_s: float = RENDEZVOUS_S) -> None:
        """Wait until the poller has met the others', then meet the other engines. Raises
        BusStartError with what the poller says, or PeerAbsentError naming who did not come."""
        self._tell_limits()
        began = time.monotonic()
        while self.slab.state is State.STARTING:
            if time.monotonic() - began > timeout_s:
                raise PollerError(
                    f"roce bus: the poller of rank {self.rank} did not come up within "
                    f"{timeout_s:g} s (engine.rendezvous_timeout_ms)"
                )
            time.sleep(_JOIN_POLL_S)
        self._heed_poller()
        self.slab.enter()
        self.beater.start()
        await_all(self.slab, self.world, timeout_s, self._heed_poller)
        self.barrier()

    def serve(self) -> None:
        self._limits = self._serving
        self._tell_limits()

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.slab.leave()
            self.beater.stop()
            self.slab.ask_to_stop()
            self._ends.poke()
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
        total = Sum(
            count, width, wire, partial.address, partial.stride, out.address, out.stride, add
        )
        if total.bytes <= self.slab.layout.geometry.latency_slot_bytes:
            if count:
                mark = self._next(Kind.ALL_REDUCE, total.bytes)
                self._run(sums.one_shot(self._ends, mark, total, self._scratch), mark)
            return
        room = sums.rows_per_segment(self._ends, width)
        if room == 0:
            raise CollectiveMismatchError(
                f"collective: a row of {4 * width} bytes exceeds a bulk slot of "
                f"{self.slab.layout.geometry.bulk_slot_bytes}"
            )
        for first in range(0, count, room):
            piece = total.piece(first, min(room, count - first))
            mark = self._next(Kind.ALL_REDUCE, piece.bytes)
            self._run(sums.striped(self._ends, mark, piece, self._scratch), mark)

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sent = np.ascontiguousarray(values)
        flat = sent.reshape(-1).view(np.uint8)
        out = np.empty((self.world, flat.size), np.uint8)
        small = flat.size <= self.slab.layout.geometry.latency_slot_bytes
        gather = sums.gather_small if small else sums.gather_bulk
        step = sums.bytes_per_gather(self._ends)
        for first in range(0, max(flat.size, 1), step):
            part = flat[first : first + step]
            mark = self._next(Kind.ALL_GATHER, part.size)
            self._run(gather(self._ends, mark, part, out[:, first : first + step]), mark)
        return out.view(sent.dtype).reshape(self.world, *sent.shape)

    def barrier(self) -> None:
        mark = self._next(Kind.BARRIER, 0)
        self._run(sums.barrier(self._ends, mark), mark)

    # Meeting -----------------------------------------------------------------------------------

    def _next(self, kind: Kind, size: int) -> Mark:
        """Begin the next collective."""
        if self._closed:
            raise CollectiveError(f"collective: rank {self.rank} has left")
        self.check()
        self.generation += 1
        self._tally.begin(kind, size)
        return Mark(self.generation, tag(kind, self._wire, size))

    def _run(self, steps: Steps, mark: Mark) -> None:
        try:
            for until in steps:
                if not bus.spin(until.address, until.value, self._spins):
                    self._wait(until, mark)
        except OtherCollectiveError as other:
            self._fail(other.peer, self._mismatch(other, mark))
        except BusError as error:
            self._fail(-1, error)

    def _wait(self, until: Until, mark: Mark) -> None:
        """Sleep until what is waited for has come. Raises CollectiveError where it never will."""
        began = time.perf_counter()
        what = f"{describe(mark.tag)} (number {mark.generation})"
        patience = Patience(self.slab, self._limits, what)
        own = Patience(PollerBeats(self.slab), Limits(self._limits.silent_s, math.inf), what)
        self._tally.late(until.peer)
        while not bus.spin(until.address, until.value, 1):
            if self._sleep(until):
                continue
            self._ends.look_for_other(mark)
            self._heed_poller()
            self._heed_blame(what)
            self._look(own, self.rank)
            self._look(patience, until.peer)
        self._tally.waited(time.perf_counter() - began)

    def _look(self, patience: Patience, rank: int) -> None:
        try:
            patience.look(rank)
        except CollectiveError as error:
            if rank == self.rank:
                error = PollerError(f"roce bus: this rank's poller: {error}")
            self._fail(rank, error)

    def _sleep(self, until: Until) -> bool:
        """Sleep until anything comes; False when nothing did for LOOK_S."""
        seen = bus.lie_down(self.slab.arrivals)
        try:
            return bus.spin(until.address, until.value, 1) or futex_wait(
                self.slab.arrivals, seen, LOOK_S
            )
        finally:
            bus.get_up(self.slab.arrivals)

    def _tell_limits(self) -> None:
        self.slab.silent_s = self._limits.silent_s

    def _heed_poller(self) -> None:
        if self.slab.state in (State.FAILED, State.ENDED):
            culprit, text, status = self.slab.failure
            kind = BusStartError if status == BusStartError.exit_status else BusError
            self._fail(culprit, kind(text or f"roce bus: the poller of rank {self.rank} has ended"))

    def _heed_blame(self, what: str) -> None:
        for rank in self._ends.peers:
            blamed = self.slab.blamed(rank)
            if blamed >= 0:
                said = f"collective: rank {rank} found rank {blamed} broken, at {what}"
                self._fail(blamed, PeerLeftError(said))

    def _mismatch(self, other: OtherCollectiveError, mark: Mark) -> CollectiveMismatchError:
        theirs, mine = describe(other.mark.tag), describe(mark.tag)
        if other.mark.generation != mark.generation:
            theirs = f"over, it is at number {other.mark.generation}, {theirs},"
        return CollectiveMismatchError(
            mismatch(mark.generation, other.peer, theirs, self.rank, mine)
        )

    def _fail(self, rank: int, error: CollectiveError) -> None:
        """Nothing more is done in this world: the others hear of it when they next look."""
        self._broken = error
        if rank >= 0:
            self.slab.blame(rank)
        raise error
