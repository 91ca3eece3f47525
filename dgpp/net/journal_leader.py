"""Rank 0's side of a running journal: who is ready, who lags, who is gone. No sockets here."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

from dgpp.net.journal_errors import RankFailedError
from dgpp.net.journal_messages import (
    Applied,
    Beat,
    ColdEnd,
    Ended,
    Leave,
    Ready,
    Stop,
    Stopped,
    Tick,
)
from dgpp.net.journal_silence import SILENT_S, START_SILENT_S, Silence

AHEAD_TICKS = 64
"""Rank 0 leads the slowest rank by at most so many ticks, and then waits."""

AHEAD_BYTES = 64 << 20
"""The same in bytes of records, of which one may be larger than that."""


class Phase(enum.Enum):
    """STARTING until all ranks are ready, STOPPING from Stop on, OVER once all have stopped."""

    STARTING = enum.auto()
    SERVING = enum.auto()
    STOPPING = enum.auto()
    OVER = enum.auto()


class Leader:
    """Takes what the other ranks say and says what rank 0 may do.

    Every method that hears of a rank raises RankFailedError where the world cannot go on.
    """

    def __init__(self, world: int, ahead_ticks: int = AHEAD_TICKS) -> None:
        self._ahead_ticks = ahead_ticks
        self.phase = Phase.STARTING
        self.leave: str | None = None
        self.stopped: set[int] = set()
        self._stop: Stop | None = None
        self._ranks = tuple(range(1, world))
        self._ready: set[int] = set()
        self._left: set[int] = set()
        self._silence = {rank: Silence(START_SILENT_S) for rank in self._ranks}
        self._applied = dict.fromkeys(self._ranks, 0)
        self._sent: deque[int] = deque()
        self._sent_bytes = 0
        self._acknowledged = 0
        self._ticks = 0

    @property
    def all_ready(self) -> bool:
        """Every other rank's actors are able to serve."""
        return len(self._ready) == len(self._ranks)

    @property
    def may_tick(self) -> bool:
        """Whether another record may be sent: ranks that cannot follow hold rank 0 back."""
        ahead = self._ticks - self._acknowledged
        return (
            self.phase is Phase.SERVING
            and ahead < self._ahead_ticks
            and (ahead == 0 or self._sent_bytes < AHEAD_BYTES)
        )

    def warm(self) -> None:
        """All ranks are ready and told so: from now on silence counts."""
        assert self.all_ready
        self.phase = Phase.SERVING
        for silence in self._silence.values():
            silence.allow(SILENT_S)

    def sent(self, tick: Tick, size: int) -> None:
        """`tick` went to every rank, as a frame of `size` bytes."""
        assert tick.tick == self._ticks
        self._ticks += 1
        self._sent.append(size)
        self._sent_bytes += size

    def stop(self, stop: Stop) -> None:
        """`stop` went to every rank."""
        assert stop.ticks == self._ticks
        self._stop = stop
        self.phase = Phase.STOPPING

    def receive(self, rank: int, message: Any) -> None:
        """What `rank` said."""
        self._silence[rank].heard()
        match message:
            case Beat() | ColdEnd():
                pass
            case Applied(ticks):
                self._apply(rank, ticks)
            case Ready() if self.phase is Phase.STARTING:
                self._ready.add(rank)
            case Leave(why):
                self.leave = self.leave or f"rank {rank}: {why}"
                self._left.add(rank)
            case Stopped() if self.phase is Phase.STOPPING:
                self._check_end(rank, message)
                self.stopped.add(rank)
                if len(self.stopped) == len(self._ranks):
                    self.phase = Phase.OVER
            case Ended(where, cause, age_s):
                raise RankFailedError(where, cause, age_s)
            case _:
                said = f"{type(message).__name__} while {self.phase.name.lower()}"
                raise RankFailedError(rank, f"journal: said {said}")

    def closed(self, rank: int, why: str) -> None:
        """`rank`'s connection ended. One that was asked to end before it served does not wait."""
        left = rank in self._left and self.phase is Phase.STARTING
        if rank not in self.stopped and not left:
            raise RankFailedError(rank, f"its journal connection ended{why}")

    def look(self) -> None:
        """To be called once per `BEAT_S`: names a rank that has been silent for too long."""
        if self.phase is Phase.OVER:
            return
        for rank, silence in self._silence.items():
            silent_s = silence.look()
            if silent_s is not None and rank not in self.stopped:
                raise RankFailedError(rank, f"silent for {silent_s:.2f} s", silent_s)

    def _check_end(self, rank: int, theirs: Stopped) -> None:
        """The operation streams of all ranks must be one, where rank 0's had come to rest."""
        stop = self._stop
        assert stop is not None
        if stop.idle and _ending(theirs) != _ending(stop):
            raise RankFailedError(
                rank, f"its operations differ: {_ending(theirs)}; on rank 0 {_ending(stop)}"
            )

    def _apply(self, rank: int, ticks: int) -> None:
        if not self._applied[rank] <= ticks <= self._ticks:
            raise RankFailedError(
                rank,
                f"journal: applied {ticks} ticks after {self._applied[rank]}, "
                f"{self._ticks} were sent",
            )
        self._applied[rank] = ticks
        slowest = min(self._applied.values())
        while self._acknowledged < slowest:
            self._acknowledged += 1
            self._sent_bytes -= self._sent.popleft()


def _ending(at: Stop | Stopped) -> str:
    return (
        f"{at.ticks} ticks, {at.steps} steps, operations {at.operations:016x}, "
        f"prefixes {at.prefixes:016x}"
    )
