"""What a rank's end of the collectives has where tensors are the CPU's, whatever carries them."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.net.collective import CollectiveStatistics, Wire, require_same_width
from dgpp.net.errors import CollectiveError, CollectiveMismatchError, PeerLeftError
from dgpp.net.lines import Lines
from dgpp.net.rows import Sum
from dgpp.net.tags import Kind, describe, mismatch, tag
from dgpp.net.tally import Tally
from dgpp.net.watch import RENDEZVOUS_S, Beater, Limits, Patience, await_all
from kernels_numba.backend import Backend, Tensor
from kernels_numba.cpu.memory import Block
from kernels_numba.picks import Picker

Bytes = npt.NDArray[np.uint8]


class HostCollective(abc.ABC):
    """Implements `dgpp.net.collective.Collective` but for what moves values.

    `join` first. `serving` are the limits once `serve` was called; before, `loading` holds.
    Tensors are the CPU backend's. One thread uses it.
    """

    name: str

    def __init__(self, lines: Lines, wire: Wire, loading: Limits, serving: Limits) -> None:
        self.rank, self.world = lines.rank, lines.world
        self.generation = 0
        """Of the last collective; it has 63 bits and is not used up."""
        self.beater = Beater(lines.beat)
        self._lines, self._wire = lines, wire
        self._serving, self._limits = serving, loading
        self._tally = Tally(self.world)
        self._broken: CollectiveError | None = None
        self._closed = False

    @abc.abstractmethod
    def join(self, timeout_s: float = RENDEZVOUS_S) -> None:
        """Meet the other ranks. Raises PeerAbsentError naming those that did not come."""

    def serve(self) -> None:
        self._limits = self._serving

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def trouble(self) -> CollectiveError | None:
        """What broke the world, as others say; for the thread that beats."""
        found = self._blamed("a step on the device")
        return found[1] if found else None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._lines.leave()
            self.beater.stop()
            self._let_go()
            self._lines.close()

    def statistics(self) -> CollectiveStatistics:
        return self._tally.statistics(self.name)

    # Operations --------------------------------------------------------------------------------

    def partial(self, backend: Backend, width: int) -> Tensor:
        return backend.tensor(width, wide=True)

    def merge(self, picker: Picker, slices: Sequence[range]) -> bool:
        return False

    def all_reduce(self, count: int, partial: Block, out: Block, *, add: bool = True) -> None:
        width = partial.width
        require_same_width(width, out.width)
        total = Sum(
            count, width, int(self._wire), partial.address, partial.stride, out.address,
            out.stride, add,
        )  # fmt: skip
        room, reduce = self._summing(total)
        for first in range(0, count, room):
            reduce(total.piece(first, min(room, count - first)))

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sent = np.ascontiguousarray(values)
        flat = sent.reshape(-1).view(np.uint8)
        out = np.empty((self.world, flat.size), np.uint8)
        room, gather = self._gathering(flat.size)
        for first in range(0, max(flat.size, 1), room):
            gather(flat[first : first + room], out[:, first : first + room])
        return out.view(sent.dtype).reshape(self.world, *sent.shape)

    @abc.abstractmethod
    def barrier(self) -> None: ...

    # What carries them -------------------------------------------------------------------------

    @abc.abstractmethod
    def _summing(self, total: Sum) -> tuple[int, Callable[[Sum], None]]:
        """How many rows of `total` one collective takes, at least one, and the collective."""

    @abc.abstractmethod
    def _gathering(self, size: int) -> tuple[int, Callable[[Bytes, Bytes], None]]:
        """How many of `size` bytes of a rank one collective takes, and the collective: it fills
        the second array, uint8 [world, n], with every rank's first one, uint8 [n]."""

    @abc.abstractmethod
    def _let_go(self) -> None:
        """Tell whoever carries for this rank that it has left."""

    # Meeting -----------------------------------------------------------------------------------

    def _enter(self, timeout_s: float, look: Callable[[], None] = lambda: None) -> None:
        """Take this rank's place and wait for all others; `look` may raise."""
        self._lines.enter()
        self.beater.start()
        await_all(self._lines, self.world, timeout_s, look)

    def _next(self, kind: Kind, size: int) -> int:
        """Begin the next collective: what it is, as ranks compare it."""
        if self._closed:
            raise CollectiveError(f"collective: rank {self.rank} has left")
        self.check()
        self.generation += 1
        self._tally.begin(kind, size)
        return tag(kind, self._wire, size)

    def _wait_for(
        self,
        what: str,
        missing: Callable[[], int],
        sleep: Callable[[int], bool],
        look: Callable[[Patience, int], None],
    ) -> None:
        """Until no rank is `missing` (-1). `sleep` until one may have come, False when nothing did
        for LOOK_S; `look` then raises CollectiveError where it never will."""
        began = time.perf_counter()
        patience = Patience(self._lines, self._limits, what)
        rank = missing()
        self._tally.late(rank)
        while rank >= 0:
            if not sleep(rank):
                look(patience, rank)
            rank = missing()
        self._tally.waited(time.perf_counter() - began)

    def _heed_blame(self, what: str) -> None:
        if found := self._blamed(what):
            self._fail(*found)

    def _blamed(self, what: str) -> tuple[int, CollectiveError] | None:
        """The rank that another one found broken, and the error that says so."""
        for rank in range(self.world):
            blamed = self._lines.blamed(rank)
            if rank != self.rank and blamed >= 0:
                said = f"collective: rank {rank} found rank {blamed} broken, at {what}"
                return blamed, PeerLeftError(said)
        return None

    def _look(self, patience: Patience, rank: int) -> None:
        try:
            patience.look(rank)
        except CollectiveError as error:
            self._fail(rank, error)

    def _mismatch(self, other: int, theirs: str, mine: int) -> CollectiveMismatchError:
        """Rank `other` is at `theirs`, this one at what `mine` describes."""
        said = mismatch(self.generation, other, theirs, self.rank, describe(mine))
        return CollectiveMismatchError(said)

    def _fail(self, rank: int, error: CollectiveError) -> None:
        """Nothing more is done in this world: the others hear of it when they next look. `rank` is
        at fault, -1 for none."""
        self._broken = error
        if rank >= 0:
            self._lines.blame(rank)
        raise error


def too_wide(size: int, slot: str) -> CollectiveMismatchError:
    """A row of `size` bytes does not fit into `slot`."""
    return CollectiveMismatchError(f"collective: a row of {size} bytes exceeds {slot}")
