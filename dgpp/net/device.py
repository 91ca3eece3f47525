"""Collectives of GPUs: sums on the devices' streams, everything else through the host's memory."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from dgpp.errors import ConfigError
from dgpp.net.collective import CollectiveStatistics
from dgpp.net.errors import (
    CollectiveError,
    CollectiveMismatchError,
    PeerLateError,
    PeerLeftError,
)
from dgpp.net.tags import describe
from dgpp.net.watch import LOADING, SERVING, Beater, Beats, Limits, Patience
from kernels_numba.backend import Backend, Tensor
from kernels_numba.gpu.board import Tally
from kernels_numba.gpu.errors import CudaError
from kernels_numba.picks import Picker

_log = logging.getLogger("dgpp.net")


class Host(Protocol):
    """A collective in the host's memory, as far as that of devices uses it."""

    rank: int
    world: int
    beater: Beater

    @property
    def slab(self) -> Beats:
        """What the ranks say of themselves."""

    def trouble(self) -> CollectiveError | None:
        """What broke the world, as far as others say; for the thread that beats."""

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def barrier(self) -> None: ...
    def serve(self) -> None: ...
    def check(self) -> None: ...
    def statistics(self) -> CollectiveStatistics: ...
    def close(self) -> None: ...


class DeviceRanks(Protocol):
    """How one rank's device reaches the others'. Methods enqueue on the current stream."""

    partial: Tensor
    tells: bool
    """Whether `failed` says that a kernel gave up."""

    def limit(self, seconds: float) -> None:
        """How long a kernel waits for another rank."""

    def abort(self) -> None:
        """Let kernels that wait end at once, and all later ones."""

    def failed(self) -> int:
        """The rank that a kernel gave up waiting for, -1 for none."""

    def other(self) -> tuple[int, int]:
        """Number and tag of what that rank did instead, (0, 0) where it is not known."""

    def tally(self) -> Tally:
        """What kernels have done, replayed ones too."""

    def all_reduce(self, count: int, out: Tensor, *, add: bool) -> None: ...
    def gather(self, source: int, words: int, out: int) -> None: ...


Opener = Callable[[Any, Backend, int], DeviceRanks]
"""(host, backend, width) → this rank's end; every rank calls it at once."""


class DeviceCollective:
    """Implements `dgpp.net.collective.Collective` for CUDA tensors over `host`, which has joined.

    `partial` connects the devices. A peer whose heart-beat stops is found by the thread that beats,
    which lets waiting kernels go; `check` then raises.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        opener: Opener,
        *,
        loading: Limits = LOADING,
        serving: Limits = SERVING,
    ) -> None:
        self.name, self.rank, self.world = name, host.rank, host.world
        self._host, self._opener = host, opener
        self._limits, self._serving = loading, serving
        self._ranks: DeviceRanks | None = None
        self._broken: CollectiveError | None = None
        self._departed: CollectiveError | None = None
        self._lock = threading.Lock()
        self._patience: dict[int, Patience] = {}

    # Devices -----------------------------------------------------------------------------------

    def partial(self, backend: Backend, width: int) -> Tensor:
        if self._ranks is not None and self._ranks.partial.width == width:
            # Every sum ends before the next share is written.
            return self._ranks.partial
        try:
            ranks = self._opener(self._host, backend, width)
        except CudaError as error:
            raise ConfigError(f"engine.collective {self.name}: {error}") from error
        self._ranks = ranks
        self._set_limits(self._limits)
        self._host.beater.watch = self._watch
        self._host.barrier()
        return ranks.partial

    def all_reduce(self, count: int, partial: Tensor, out: Tensor, *, add: bool = True) -> None:
        assert self._ranks is not None
        assert partial is self._ranks.partial, "sums are of what `partial` gave"
        self._ranks.all_reduce(count, out, add=add)

    def merge(self, picker: Picker, slices: Sequence[range]) -> bool:
        share: Any = picker
        starts, whole = [held.start for held in slices], slices[-1].stop
        share.merge_over(self._ranks, starts, whole)
        return True

    # Host --------------------------------------------------------------------------------------

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # They may come from a device whose kernels gave up.
        self.check()
        return self._host.all_gather(values)

    def barrier(self) -> None:
        self.check()
        self._host.barrier()

    def serve(self) -> None:
        self._host.serve()
        self._set_limits(self._serving)

    def check(self) -> None:
        if self._broken is None and self._ranks is not None and self._ranks.failed() >= 0:
            self._broken = self._departed or self._gave_up(self._ranks)
        if self._broken is not None:
            raise self._broken
        self._host.check()

    def _gave_up(self, ranks: DeviceRanks) -> CollectiveError:
        """Why a kernel did, where nobody has left."""
        rank, (generation, tag) = ranks.failed(), ranks.other()
        if tag:
            return CollectiveMismatchError(
                f"collective: rank {rank} is at {describe(tag)}, its number {generation} on the "
                f"device, and rank {self.rank} at another"
            )
        return PeerLateError(
            f"collective: rank {rank} lives and did not come to a sum on the device within "
            f"{self._limits.late_s:g} s"
        )

    def statistics(self) -> CollectiveStatistics:
        told, own = self._host.statistics(), Tally()
        if self._ranks is not None:
            own = self._ranks.tally()
        return msgspec.structs.replace(
            told,
            path=self.name,
            all_reduces=told.all_reduces + own.sums,
            all_gathers=told.all_gathers + own.gathers,
            bytes=told.bytes + own.bytes,
            waits=told.waits + own.waits,
            waited_s=told.waited_s + own.waited_ns / 1e9,
        )

    def close(self) -> None:
        self._host.beater.watch = None
        self._host.close()

    # Watching ----------------------------------------------------------------------------------

    def _set_limits(self, limits: Limits) -> None:
        silence = Limits(limits.silent_s, math.inf)
        with self._lock:
            self._limits = limits
            self._patience = {
                rank: Patience(self._host.slab, silence, "a step on the device")
                for rank in range(self.world)
                if rank != self.rank
            }
        if self._ranks is not None:
            self._ranks.limit(limits.late_s)

    def _watch(self) -> None:
        """On the beating thread, after each beat."""
        with self._lock:
            if self._broken or self._departed or self._ranks is None:
                return
            if error := self._host.trouble():
                self._broken = error
                self._ranks.abort()
                return
            for rank, patience in self._patience.items():
                try:
                    patience.look(rank)
                except CollectiveError as error:
                    if isinstance(error, PeerLeftError) and self._ranks.tells:
                        # At the end of a world some leave first; it matters to who waits for them.
                        self._departed = error
                    else:
                        self._broken = error
                    self._ranks.abort()
                    return
