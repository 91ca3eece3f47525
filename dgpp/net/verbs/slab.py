"""The memory that a rank's engine and its poller share, and what they and other ranks say in it.

All zero is a valid beginning: whoever starts the two calls `create_bus` and hands its fds to both.
One slab serves one rank of one world once.
"""

from __future__ import annotations

import enum
import mmap
import os
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dgpp.net.errors import CollectiveMismatchError
from dgpp.net.lines import Lines
from dgpp.net.verbs.layout import TEXT_BYTES, Layout

# Words of the poller and of the engine.
_STATE, _POLLER_BEAT, _POLLER_PID, _CULPRIT, _TEXT, _STATUS = range(6)
_STOP, _SILENT_MS = range(2)


class State(enum.IntEnum):
    """Of a rank's poller."""

    STARTING = 0
    JOINED = 1
    FAILED = 2
    ENDED = 3


class BusFiles(NamedTuple):
    """What engine and poller share: the slab's memfd, and an eventfd that wakes the poller."""

    slab: int
    bell: int

    def close(self) -> None:
        for fd in self:
            os.close(fd)


def create_bus(layout: Layout) -> BusFiles:
    """Both, closed on exec unless they are handed on."""
    slab = os.memfd_create("dgpp-bus", os.MFD_CLOEXEC)
    os.ftruncate(slab, layout.bytes)
    return BusFiles(slab, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))


class BusSlab(Lines):
    """One process's view of its rank's slab.

    Raises CollectiveMismatchError for another size.
    """

    def __init__(self, files: BusFiles, rank: int, layout: Layout) -> None:
        held = os.fstat(files.slab).st_size
        if held != layout.bytes:
            raise CollectiveMismatchError(
                f"roce bus: the shared slab has {held} bytes, {layout.world} ranks with "
                f"{layout.lanes} lanes and {layout.geometry} need {layout.bytes}"
            )
        self.layout = layout
        self.bell = os.dup(files.bell)
        self._map = mmap.mmap(files.slab, layout.bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        """uint8, the whole slab."""
        self.words = memoryview(self._map)[: layout.bytes // 8 * 8].cast("q")
        """The same as int64."""
        lines = [layout.line(of) // 8 for of in range(layout.world)]
        super().__init__(self.words, lines, rank)
        self.address = int(self.bytes.ctypes.data)
        header = layout.header
        self.line = self.address + layout.line(rank)
        self.arrivals = self.address + header.arrivals
        self.rests = self.address + header.rests
        self._poller, self._engine = header.poller // 8, header.engine // 8

    def close(self) -> None:
        """Give the memory back as soon as no array shows it any more."""
        os.close(self.bell)
        super().close()
        empty: Any = np.zeros(0, np.uint8)
        self.bytes = empty

    # Between engine and poller -----------------------------------------------------------------

    @property
    def state(self) -> State:
        return State(self.words[self._poller + _STATE])

    @state.setter
    def state(self, state: State) -> None:
        self.words[self._poller + _STATE] = state

    def poller_beat(self) -> None:
        self.words[self._poller + _POLLER_PID] = os.getpid()
        self.words[self._poller + _POLLER_BEAT] += 1

    @property
    def poller_beats(self) -> int:
        return self.words[self._poller + _POLLER_BEAT]

    @property
    def poller_pid(self) -> int:
        return self.words[self._poller + _POLLER_PID]

    def fail(self, culprit: int, text: str, status: int) -> None:
        """The poller's end: `culprit` is the rank at fault (-1: none), `status` the exit status
        that the failure asks for."""
        told = text.encode()[:TEXT_BYTES]
        start = self.layout.header.text
        self.bytes[start : start + len(told)] = np.frombuffer(told, np.uint8)
        for word, value in ((_TEXT, len(told)), (_CULPRIT, culprit + 1), (_STATUS, status)):
            self.words[self._poller + word] = value
        self.state = State.FAILED

    @property
    def failure(self) -> tuple[int, str, int]:
        """What `fail` was told."""
        start, word = self.layout.header.text, self._poller
        text = self.bytes[start : start + self.words[word + _TEXT]].tobytes()
        culprit, status = self.words[word + _CULPRIT] - 1, self.words[word + _STATUS]
        return culprit, text.decode(errors="replace"), status

    def ask_to_stop(self) -> None:
        """The engine is done with the bus."""
        self.words[self._engine + _STOP] = 1

    @property
    def asked_to_stop(self) -> bool:
        return bool(self.words[self._engine + _STOP])

    @property
    def silent_s(self) -> float:
        """How long a rank may be silent, as the engine says; 0 before it has said so."""
        return self.words[self._engine + _SILENT_MS] / 1e3

    @silent_s.setter
    def silent_s(self, seconds: float) -> None:
        self.words[self._engine + _SILENT_MS] = int(seconds * 1e3)


class PollerBeats:
    """A rank's own poller, as its engine sees it. Implements `dgpp.net.watch.Beats`."""

    def __init__(self, slab: BusSlab) -> None:
        self._slab = slab

    def beats(self, rank: int) -> int:
        return self._slab.poller_beats

    def pid(self, rank: int) -> int:
        return self._slab.poller_pid

    def left(self, rank: int) -> bool:
        return False
