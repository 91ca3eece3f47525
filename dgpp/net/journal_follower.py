"""Another rank's side of a running journal: records in order, digests compared. No sockets here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from dgpp.net.journal_errors import JournalContractError, ReleasedError
from dgpp.net.journal_join import differing
from dgpp.net.journal_leader import AHEAD_TICKS
from dgpp.net.journal_messages import Applied, Beat, Ended, Stop, Stopped, Tick, Warm
from dgpp.net.journal_silence import SILENT_S, START_SILENT_S, Silence
from dgpp.sched.request import Record

APPLIED_EVERY = AHEAD_TICKS // 4
"""Ticks between two acknowledgements."""


class Point(NamedTuple):
    """Where a rank's scheduler stands between two ticks: verdicts applied, and its digests."""

    steps: int
    operations: int
    prefixes: int


class Follower:
    """Holds the records that rank 0 sent until this rank's scheduler stands where rank 0's stood.

    Raises JournalContractError where rank 0 says what it may not or the ranks disagree, and
    ReleasedError where the world is over.
    """

    def __init__(self, rank: int, facts: Mapping[str, str]) -> None:
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
            case Ended(rank, cause):
                raise ReleasedError(f"rank {rank} ended the world: {cause}")
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
    def demanded(self) -> int | None:
        """Verdicts that must be applied before the next record or the end; None: none waits."""
        if self._records:
            return self._records[0].steps
        return self._stop.steps if self._stop is not None else None

    def next(self, point: Point) -> Record | None:
        """The record to apply now that the scheduler stands at `point`; None while none is due.

        Raises JournalContractError where this rank has come somewhere else than rank 0.
        """
        if not self._records or point.steps < self._records[0].steps:
            return None
        tick = self._records.popleft()
        self._compare(f"tick {tick.tick}", tick, point)
        try:
            record = tick.record()
        except ValueError as error:
            raise JournalContractError(f"tick {tick.tick} makes no sense: {error}") from error
        self._applied += 1
        return record

    def acknowledgement(self) -> Applied | None:
        """What to tell rank 0 after a record was applied, now and then."""
        return Applied(self._applied) if self._applied % APPLIED_EVERY == 0 else None

    def finish(self, point: Point) -> Stopped | None:
        """The last answer, once everything up to Stop is applied; None before."""
        stop = self._stop
        if stop is None or self.stopped or self._records or point.steps < stop.steps:
            return None
        if stop.idle:
            self._compare("stop", stop, point)
        self.stopped = True
        return Stopped(self._applied, *point)

    def _queue(self, tick: Tick) -> None:
        self._check_number("tick", tick.tick)
        if len(self._records) >= AHEAD_TICKS:
            raise JournalContractError(f"rank 0 leads by more than {AHEAD_TICKS} ticks")
        self._received += 1
        self._records.append(tick)

    def _check_number(self, what: str, number: int) -> None:
        if number != self._received:
            raise JournalContractError(
                f"rank 0 said {what} {number}, {self._received} ticks have come"
            )

    def _compare(self, when: str, theirs: Tick | Stop, mine: Point) -> None:
        for name, ours, others in (
            ("steps", mine.steps, theirs.steps),
            ("operations", mine.operations, theirs.operations),
            ("prefixes", mine.prefixes, theirs.prefixes),
        ):
            if ours != others:
                raise JournalContractError(
                    f"{when}: rank {self._rank} disagrees with rank 0: {name} {ours:x}, "
                    f"rank 0 {others:x}"
                )
