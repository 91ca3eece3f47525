"""Words that the host and kernels which wait for other ranks show each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels_numba.gpu.device import load_cupy

_ABORT, _FAILED, _LIMIT_NS, _TOLD = range(4)
"""As in waiting.cuh."""
_TALLIES = 5
_OTHER_GENERATION, _OTHER_TAG = _TOLD + _TALLIES, _TOLD + _TALLIES + 1
"""As in bus.cu; other kernels know nothing of them."""


class Tally(NamedTuple):
    """What collectives did on the device since the start, replayed ones too, as far as the host has
    been told. `bytes` are this rank's own parts. `waits` began before some rank's part was there,
    and took `waited_ns` in all, by the device's highest clock."""

    sums: int = 0
    gathers: int = 0
    bytes: int = 0
    waits: int = 0
    waited_ns: int = 0


class Board:
    """Pinned words, and the counters on the device whose values come there; behind these, whether a
    kernel gave up."""

    def __init__(self) -> None:
        cupy = load_cupy()
        words = _OTHER_TAG + 1
        self._words = np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * words), np.uint64, words)
        self._words[:] = 0
        self._tallies = cupy.zeros(_TALLIES + 1, cupy.uint64)
        self._cycle_ns = 1e6 / max(1, cupy.cuda.Device().attributes["ClockRate"])
        self.addresses = (int(self._tallies.data.ptr), int(self._words.ctypes.data))
        """What kernels are told: the counters, then the words."""

    def limit(self, seconds: float) -> None:
        """How long a kernel waits for another rank."""
        self._words[_LIMIT_NS] = int(seconds * 1e9)

    def abort(self) -> None:
        """Let kernels that wait end at once, with rubbish; so do all later ones."""
        self._words[_ABORT] = 1

    def failed(self) -> int:
        """The rank that a kernel gave up waiting for, -1 for none."""
        return int(self._words[_FAILED]) - 1

    def other(self) -> tuple[int, int]:
        """Number and tag of what another rank did where a kernel gave up, (0, 0) for nothing."""
        return int(self._words[_OTHER_GENERATION]), int(self._words[_OTHER_TAG])

    def tally(self) -> Tally:
        sums, gathers, size, waits, cycles = self._words[_TOLD : _TOLD + _TALLIES].tolist()
        return Tally(sums, gathers, size, waits, int(cycles * self._cycle_ns))
