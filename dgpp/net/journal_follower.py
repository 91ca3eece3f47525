"""Another rank's side of a running journal: records in order, digests compared. No sockets here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from dgpp.net.journal_errors import JournalContractError, ReleasedError
from dgpp.net.journal_join import differing
from dgpp.net.journal_leader import AHEAD_TICKS
from dgpp.net.journal_messages import Applied, Beat, Ended, Point, Stop, Stopped, Tick, Warm
from dgpp.net.journal_silence import SILENT_S, START_SILENT_S, Silence
from dgpp.sched.request import Record

APPLIED_PARTS = 4
"""How often a rank acknowledges what it applied, in the course of rank 0's whole lead."""


class Follower:
    """Holds the records that rank 0 sent until this rank's scheduler stands where rank 0's stood.

    Raises JournalContractError where rank 0 says what it may not or the ranks disagree, and
    ReleasedError where the world is over.
    """

    def __init__(self, rank: int, facts: Mapping[str, str], ahead_ticks: int = AHEAD_TICKS) -> None:
        self._ahead_ticks = ahead_ticks
        self._applied_every = max(1, ahead_ticks // APPLIED_PARTS)
        self.warm = False
        self.stopped = False
        self._rank = rank
        self._facts = facts
        self._records: deque[Tick] = deque()
        self._received = 0
        self._applied = 0
        self._stop: Stop | None = None
        self._silence = Silence(START_SILENT_S)

    def receive(self, message: Any) -> None:
        """What rank 0 said."""
        self._silence.heard()
        match message:
            case Beat():
                pass
            case Tick() if self.warm and self._stop is None:
                self._queue(message)
            case Warm(facts) if not self.warm:
                if difference := differing(facts, self._facts):
                    raise JournalContractError(
                        f"rank {self._rank} is not what rank 0 expects: {difference}"
                    )
                self.warm = True
                self._silence.allow(SILENT_S)
            case Stop() if self._stop is None:
                self._check_number("stop after", message.ticks)
                self._stop = message
            case Ended():
                raise ReleasedError(message.words)
            case _:
                raise JournalContractError(f"rank 0 said {type(message).__name__} out of turn")

    def closed(self, why: str) -> None:
        """The connection to rank 0 ended."""
        if not self.stopped:
            raise ReleasedError(f"rank 0 is gone: its journal connection ended{why}")

    def look(self) -> None:
        """To be called once per `BEAT_S`."""
        silent_s = self._silence.look()
        if silent_s is not None and not self.stopped:
            raise ReleasedError(f"rank 0 is gone: silent for {silent_s:.2f} s")

    @property
    def due(self) -> bool:
        """Whether a record waits to be applied."""
        return bool(self._records)

    def next(self, point: Point) -> Record:
        """The record that is due, now that the scheduler stands at `point` and may tick.

        Raises JournalContractError where this rank has come somewhere else than rank 0.
        """
        tick = self._records.popleft()
        self._compare(tick, point)
        try:
            record = tick.record()
        except ValueError as error:
            raise JournalContractError(f"tick {tick.tick} makes no sense: {error}") from error
        self._applied += 1
        return record

    def acknowledgement(self) -> Applied | None:
        """What to tell rank 0 after a record was applied, now and then."""
        return Applied(self._applied) if self._applied % self._applied_every == 0 else None

    def finish(self, point: Point) -> Stopped | None:
        """The last answer, once everything up to Stop is applied; None before."""
        stop = self._stop
        if stop is None or self.stopped or self._records or point.steps < stop.steps:
            return None
        self.stopped = True
        return Stopped(self._applied, *point)

    def _queue(self, tick: Tick) -> None:
        self._check_number("tick", tick.tick)
        if len(self._records) >= self._ahead_ticks:
            raise JournalContractError(f"rank 0 leads by more than {self._ahead_ticks} ticks")
        self._received += 1
        self._records.append(tick)

    def _check_number(self, what: str, number: int) -> None:
        if number != self._received:
            raise JournalContractError(
                f"rank 0 said {what} {number}, {self._received} ticks have come"
            )

    def _compare(self, tick: Tick, mine: Point) -> None:
        for name, ours, theirs in (
            ("steps", mine.steps, tick.steps),
            ("operations", mine.operations, tick.operations),
            ("prefixes", mine.prefixes, tick.prefixes),
        ):
            if ours != theirs:
                raise JournalContractError(
                    f"tick {tick.tick}: rank {self._rank} disagrees with rank 0: "
                    f"{name} {ours:x}, rank 0 {theirs:x}"
                )
