"""Collectives over the RoCE bus: the engine's side of it, in the CPU's memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dgpp.net.collective import Wire
from dgpp.net.errors import CollectiveError, CollectiveMismatchError
from dgpp.net.futex import futex_wait
from dgpp.net.host import Bytes, HostCollective, too_wide
from dgpp.net.rows import Sum
from dgpp.net.spins import spins_of
from dgpp.net.tags import Kind, describe
from dgpp.net.verbs import sums
from dgpp.net.verbs.errors import BusError, BusStartError, PollerError, ProtocolError
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.slab import BusFiles, BusSlab, PollerBeats, State
from dgpp.net.verbs.slots import Ends, Mark, OtherCollectiveError, Until
from dgpp.net.verbs.sums import Scratch, Steps
from dgpp.net.watch import LOADING, LOOK_S, RENDEZVOUS_S, SERVING, Limits, Patience
from kernels_numba.cpu import bus

_JOIN_POLL_S = 0.01


class VerbsCollective(HostCollective):
    """Over the bus that this rank's `Poller` runs.

    `files` are what both share (`create_bus`), `layout` the same on all ranks.
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
        self.slab = BusSlab(files, rank, layout)
        super().__init__(self.slab, wire, loading, serving)
        self._ends = Ends(self.slab)
        self._scratch = Scratch(self.world)
        # This rank's engine and poller.
        self._spins = spins_of(2)

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
        self._enter(timeout_s, self._heed_poller)
        self.barrier()

    def serve(self) -> None:
        super().serve()
        self._tell_limits()

    def _let_go(self) -> None:
        self.slab.ask_to_stop()
        self._ends.poke()

    def trouble(self) -> CollectiveError | None:
        if found := self._poller_failure():
            return found[1]
        return self._poller_silence(self._own) or super().trouble()

    # Operations --------------------------------------------------------------------------------

    def barrier(self) -> None:
        mark = self._begin(Kind.BARRIER, 0)
        self._run(sums.barrier(self._ends, mark), mark)

    def _summing(self, total: Sum) -> tuple[int, Callable[[Sum], None]]:
        if self._is_small(total.bytes):
            return max(1, total.rows), self._reduce_small
        room = sums.rows_per_segment(self._ends, total.width, total.wire)
        if room == 0:
            slot = self.slab.layout.geometry.bulk_slot_bytes
            size = sums.bytes_of_value(self.world, total.wire)
            raise too_wide(size * total.width, f"a bulk slot of {slot}")
        return room, self._reduce_bulk

    def _reduce_small(self, piece: Sum) -> None:
        mark = self._begin(Kind.ALL_REDUCE, piece.bytes)
        self._run(sums.one_shot(self._ends, mark, piece, self._scratch), mark)

    def _reduce_bulk(self, piece: Sum) -> None:
        mark = self._begin(Kind.ALL_REDUCE, piece.bytes)
        self._run(sums.in_stripes(self._ends, mark, piece, self._scratch), mark)

    def _gathering(self, size: int) -> tuple[int, Callable[[Bytes, Bytes], None]]:
        room = sums.bytes_per_gather(self._ends)
        return room, self._gather_small if self._is_small(size) else self._gather_bulk

    def _gather_small(self, part: Bytes, out: Bytes) -> None:
        mark = self._begin(Kind.ALL_GATHER, part.size)
        self._run(sums.gather_small(self._ends, mark, part, out), mark)

    def _gather_bulk(self, part: Bytes, out: Bytes) -> None:
        mark = self._begin(Kind.ALL_GATHER, part.size)
        self._run(sums.gather_bulk(self._ends, mark, part, out), mark)

    def _is_small(self, size: int) -> bool:
        return size <= self.slab.layout.geometry.latency_slot_bytes

    # Meeting -----------------------------------------------------------------------------------

    def _begin(self, kind: Kind, size: int) -> Mark:
        mine = self._next(kind, size)
        return Mark(self.generation, mine)

    def _run(self, steps: Steps, mark: Mark) -> None:
        torn, since = None, 0.0
        try:
            for until in steps:
                if not bus.spin(until.address, until.value, self._spins):
                    self._wait(until, mark)
                elif until != torn:
                    torn, since = until, time.monotonic()
                elif time.monotonic() - since > self._limits.silent_s:
                    raise self._never_whole(until)
        except OtherCollectiveError as other:
            self._fail(other.peer, self._other(other, mark))
        except BusError as error:
            self._fail(-1, error)

    def _never_whole(self, until: Until) -> ProtocolError:
        """What was announced is there, and neither it nor its payload gets the right hash."""
        return ProtocolError(
            f"roce bus: rank {until.peer}: message {until.value} has come, but not with its hash, "
            f"for {self._limits.silent_s:g} s: memory or the adapter is faulty, or another process "
            "wrote into the slab"
        )

    def _wait(self, until: Until, mark: Mark) -> None:
        """Sleep until what is waited for has come. Raises CollectiveError where it never will."""
        what = f"{describe(mark.tag)} (number {mark.generation})"
        own = self._patience_with_poller(what)

        def missing() -> int:
            return -1 if bus.spin(until.address, until.value, 1) else until.peer

        def look(patience: Patience, rank: int) -> None:
            self._ends.look_for_other(mark)
            self._heed_poller()
            self._heed_blame(what)
            if error := self._poller_silence(own):
                self._fail(self.rank, error)
            self._look(patience, rank)

        self._wait_for(what, missing, lambda _rank: self._sleep(until), look)

    def _poller_silence(self, patience: Patience) -> CollectiveError | None:
        try:
            patience.look(self.rank)
        except CollectiveError as error:
            return PollerError(f"roce bus: this rank's poller: {error}")
        return None

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
        self._own = self._patience_with_poller("a step on the device")

    def _patience_with_poller(self, what: str) -> Patience:
        return Patience(PollerBeats(self.slab), Limits(self._limits.silent_s, math.inf), what)

    def _heed_poller(self) -> None:
        if found := self._poller_failure():
            self._fail(*found)

    def _poller_failure(self) -> tuple[int, CollectiveError] | None:
        """The rank at fault (-1: none) and what this rank's poller ended with."""
        if self.slab.state not in (State.FAILED, State.ENDED):
            return None
        culprit, text, status = self.slab.failure
        kind = BusStartError if status == BusStartError.exit_status else BusError
        return culprit, kind(text or f"roce bus: the poller of rank {self.rank} has ended")

    def _other(self, other: OtherCollectiveError, mark: Mark) -> CollectiveMismatchError:
        theirs = describe(other.mark.tag)
        if other.mark.generation != mark.generation:
            theirs = f"over, it is at number {other.mark.generation}, {theirs},"
        return self._mismatch(other.peer, theirs, mark.tag)
