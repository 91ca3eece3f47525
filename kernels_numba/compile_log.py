"""Says when CPU kernels are compiled, which the first start on a machine does and no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numba.core.event

EVERY_S = 15.0
"""Seconds between two lines while kernels are compiled."""

_log = logging.getLogger("dgpp.engine")
_events: Any = numba.core.event


class CompileLog(_events.Listener):  # type: ignore[misc]
    """Counts functions that Numba compiles instead of finding them in its cache, one inside another
    included, and says so at the first and from time to time."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._count = 0
        self._began = self._said = self._ended = 0.0

    def on_start(self, event: Any) -> None:
        if self._count == 0:
            self._began = self._said = self._clock()
            _log.info(
                "compiling CPU kernels, up to two minutes: the first start on this machine that "
                "needs them; kept in %s",
                self._folder,
            )
        self._count += 1

    def on_end(self, event: Any) -> None:
        self._ended = self._clock()
        if self._ended - self._said >= EVERY_S:
            self._said = self._ended
            _log.info("%d CPU kernels compiled so far", self._count)

    def summary(self) -> list[str]:
        """A line on what was compiled, if anything was."""
        if not self._count:
            return []
        return [f"{self._count} CPU kernels compiled in {self._ended - self._began:.1f} s"]

    def install(self) -> None:
        """Hear of every compilation from now on."""
        _events.register("numba:compile", self)
