"""What ranks do together: sums, gathers and barriers, the same bits on every rank."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy.typing as npt

from dgpp.net.errors import CollectiveMismatchError
from kernels_numba.backend import Backend, Tensor
from kernels_numba.meeting import BF16_WIRE, F32_WIRE
from kernels_numba.picks import Picker


class Wire(enum.IntEnum):
    """What a value of a sum is while it travels; sums themselves are float32. Bytes a value."""

    F32 = F32_WIRE
    BF16 = BF16_WIRE


class CollectiveStatistics(msgspec.Struct, frozen=True):
    """Counts since the start, a replayed graph's collectives among them. `bytes` are this rank's
    own parts. `waits` had to sleep, or on a device to look again, for `waited_s` seconds in all;
    `late[r]` of those on the host for rank r first."""

    path: str
    all_reduces: int
    all_gathers: int
    barriers: int
    bytes: int
    waits: int
    waited_s: float
    late: tuple[int, ...]

    @property
    def total(self) -> int:
        """Collectives of all kinds."""
        return self.all_reduces + self.all_gathers + self.barriers


class Collective(Protocol):
    """The ends of one world on one rank. All ranks call the same operations in the same order.

    Every operation raises a CollectiveError that names the rank at fault, within the limits of
    the phase: loading, which ranks leave minutes apart, until `serve()`, then serving.
    """

    name: str
    rank: int
    world: int

    def all_reduce(self, count: int, partial: Tensor, out: Tensor, *, add: bool = True) -> None:
        """out[r] = Σ over ranks of partial[r] for the first `count` rows, added to what out[r]
        holds when `add`. float32, ranks in order, each element by itself: the bits depend neither
        on `count` nor on the row's place. On a device it is enqueued."""

    def partial(self, backend: Backend, width: int) -> Tensor:
        """float32 activations to be summed, where `all_reduce` reads them best."""

    def merge(self, picker: Picker, slices: Sequence[range]) -> bool:
        """Let `picker` find the candidates of whole rows by itself, of which rank r has the ids
        `slices[r]`; False where it cannot, and the host has to merge them."""

    def all_gather(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[world, *shape]: the host array of every rank, all of one shape and dtype."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""

    def serve(self) -> None:
        """Loading is over on this rank: from now on waits have the limits of serving."""

    def check(self) -> None:
        """Raises what broke an enqueued operation; to be called when the device has answered."""

    def statistics(self) -> CollectiveStatistics:
        """What was done so far."""

    def close(self) -> None:
        """Leave the world; whoever still waits for this rank is told so."""


def require_same_width(width: int, out: int) -> None:
    """Raises CollectiveMismatchError."""
    if out != width:
        raise CollectiveMismatchError(
            f"collective: rows of {width} values cannot be summed into rows of {out}"
        )
