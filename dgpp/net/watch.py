"""Is a rank that one waits for alive? Its heart-beat in the slab says so.

Watchers count their own looks, not time: when the whole machine pauses nobody looks, and nobody is
accused afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from dgpp.net.errors import PeerAbsentError, PeerLateError, PeerLeftError, PeerSilentError

LOOK_S = 0.1
"""Between two looks, and between two beats."""
RENDEZVOUS_S = 120.0
_JOIN_POLL_S = 0.01


class Limits(msgspec.Struct, frozen=True):
    """`silent_s` without a beat is death; `late_s` of waiting for a rank that beats is too long."""

    silent_s: float
    late_s: float


LOADING = Limits(silent_s=30.0, late_s=3600.0)
"""Ranks read their weights at their own pace, and interpreters are held for seconds."""
SERVING = Limits(silent_s=2.0, late_s=30.0)


class Beats(Protocol):
    """What is known of ranks."""

    def beats(self, rank: int) -> int: ...
    def pid(self, rank: int) -> int: ...
    def left(self, rank: int) -> bool: ...


def await_all(
    ranks: Beats, world: int, timeout_s: float, look: Callable[[], None] = lambda: None
) -> None:
    """Returns when every rank has a process; `look` may raise while it waits. Raises
    PeerAbsentError naming those that did not come."""
    tries = max(1, int(timeout_s / _JOIN_POLL_S))
    while absent := [rank for rank in range(world) if not ranks.pid(rank)]:
        if tries == 0:
            names = ", ".join(f"rank {rank}" for rank in absent)
            raise PeerAbsentError(
                f"collective: {names} of {world} did not join within {timeout_s:g} s "
                "(engine.rendezvous_timeout_ms)"
            )
        tries -= 1
        look()
        time.sleep(_JOIN_POLL_S)


class Patience:
    """One wait: what was seen of the rank that is waited for."""

    def __init__(self, ranks: Beats, limits: Limits, what: str) -> None:
        self._ranks, self._limits, self._what = ranks, limits, what
        self._rank = -1
        self._beats = 0
        self._still = 0
        self._looks = 0

    def look(self, rank: int) -> None:
        """To be called every LOOK_S while `rank` is missing. Raises CollectiveError naming it."""
        if rank != self._rank:
            self._rank, self._beats, self._still, self._looks = rank, -1, 0, 0
        seen = self._ranks.beats(rank)
        self._still = 0 if seen != self._beats else self._still + 1
        self._beats = seen
        self._looks += 1
        who = f"rank {rank} (process {self._ranks.pid(rank)})"
        if self._ranks.left(rank):
            raise PeerLeftError(f"collective: {who} has left before {self._what}")
        if self._still * LOOK_S >= self._limits.silent_s:
            raise PeerSilentError(
                f"collective: {who} is dead or stopped: no heart-beat for "
                f"{self._limits.silent_s:g} s, at {self._what}"
            )
        if self._looks * LOOK_S >= self._limits.late_s:
            raise PeerLateError(
                f"collective: {who} lives and did not come to {self._what} within "
                f"{self._limits.late_s:g} s"
            )


class Beater:
    """The daemon thread that beats for this rank, and calls `watch` after each beat."""

    def __init__(self, beat: Callable[[], None], watch: Callable[[], None] | None = None) -> None:
        self._beat = beat
        self.watch = watch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="collective-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._beat()
            if self.watch is not None:
                self.watch()
