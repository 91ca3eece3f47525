"""The shared memory in which the ranks of one host meet: a line of words and two slots a rank.

All zero is a valid beginning: whoever starts the ranks makes a memfd of `slab_bytes` and hands its
fd to each. One slab serves one world once.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from dgpp.net.errors import CollectiveError, CollectiveMismatchError
from dgpp.net.lines import Lines
from kernels_numba.meeting import LINE_BYTES

SLOT_BYTES = 512 << 10
"""Most that one rank contributes to one exchange; larger ones go in pieces. A piece of each rank
stays in a core's second-level cache."""
VERSION = 1
_PAGE = 4096
# Words of a rank's line, beside those of kernels_numba.cpu.exchange.
_SAID, _GEOMETRY = 8, 24
_WORDS = LINE_BYTES // 8


def slab_bytes(world: int, slot_bytes: int = SLOT_BYTES) -> int:
    """Size of the slab of `world` ranks."""
    return _lines_bytes(world) + 2 * world * slot_bytes


def create_slab(world: int, slot_bytes: int = SLOT_BYTES) -> int:
    """A memfd for the slab, closed on exec unless it is handed on."""
    fd = os.memfd_create("dgpp-collective", os.MFD_CLOEXEC)
    os.ftruncate(fd, slab_bytes(world, slot_bytes))
    return fd


def _lines_bytes(world: int) -> int:
    return -(-world * LINE_BYTES // _PAGE) * _PAGE


class Slab(Lines):
    """One rank's view of the whole slab. Raises CollectiveMismatchError for another size."""

    def __init__(self, fd: int, rank: int, world: int, slot_bytes: int = SLOT_BYTES) -> None:
        size = slab_bytes(world, slot_bytes)
        held = os.fstat(fd).st_size
        if held != size:
            raise CollectiveMismatchError(
                f"collective: the shared slab has {held} bytes, {world} ranks with slots of "
                f"{slot_bytes} need {size}"
            )
        if not 0 <= rank < world:
            raise CollectiveError(f"collective: rank {rank} of {world} does not exist")
        self.slot_bytes = slot_bytes
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        words = memoryview(self._map)[: world * LINE_BYTES].cast("q")
        super().__init__(words, [_WORDS * of + _SAID for of in range(world)], rank)
        self.lines = int(self._bytes.ctypes.data)
        self.data = self.lines + _lines_bytes(world)
        data = self._bytes[_lines_bytes(world) :]
        self.slots: npt.NDArray[np.uint8] = data.reshape(world, 2, slot_bytes)
        """uint8 [world, 2, slot_bytes]."""

    def line(self, rank: int) -> int:
        """Address of a rank's words."""
        return self.lines + rank * LINE_BYTES

    def slot(self, rank: int, generation: int) -> int:
        """Address of a rank's part of a collective."""
        return self.data + (2 * rank + (generation & 1)) * self.slot_bytes

    # What a rank says of itself ----------------------------------------------------------------

    def enter(self) -> None:
        """Take this rank's place. Raises CollectiveError where somebody has it already."""
        if self.pid(self.rank):
            raise CollectiveError(
                f"collective: process {self.pid(self.rank)} is rank {self.rank} already"
            )
        for place, value in enumerate(self._shape()):
            self._words[self._geometry(self.rank) + place] = value
        super().enter()

    def _shape(self) -> tuple[int, int, int]:
        return VERSION, self.world, self.slot_bytes

    @staticmethod
    def _geometry(rank: int) -> int:
        """Where in the words a rank says it."""
        return _WORDS * rank + _GEOMETRY

    def require_same_shape(self, rank: int) -> None:
        """Raises CollectiveMismatchError where `rank` has another idea of the world."""
        first = self._geometry(rank)
        theirs = tuple(self._words[first + place] for place in range(3))
        if theirs != self._shape():
            names = ("version", "world", "slot bytes")
            wrong = ", ".join(
                f"{name} {told} instead of {own}"
                for name, told, own in zip(names, theirs, self._shape(), strict=True)
                if told != own
            )
            raise CollectiveMismatchError(f"collective: rank {rank} has {wrong}")

    def close(self) -> None:
        """Give the memory back as soon as no array shows it any more."""
        super().close()
        empty: Any = np.zeros((0, 2, 0), np.uint8)
        self.slots, self._bytes = empty, empty
