"""The scheduler's actor beyond rank 0: it applies rank 0's records and derives all the rest."""

from __future__ import annotations

from typing import Any

from actors.channel import Arrays
from actors.context import Context
from actors.journal import FollowerJournal
from actors.messages.engine_scheduler import ColdEnded
from actors.ticking import TickingActor
from dgpp.net.journal_errors import JournalContractError, ReleasedError
from dgpp.net.journal_messages import ColdEnd, Point
from dgpp.sched.outcomes import Refused
from dgpp.sched.request import Record
from dgpp.sched.scheduler import Taken
from dgpp.sched.verdict import Verdict


class FollowerActor(TickingActor):
    """Clients and their cancels are rank 0's: here they come as records."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert self.boot.journal is not None
        self._journal = FollowerJournal(context, self.boot.journal, context.rank, self.advance)

    async def start(self) -> None:
        await self._journal.open()

    async def serve(self) -> None:
        await self._journal.ready()
        self._report.begin()

    async def drain(self, timeout_s: float) -> None:
        await self._journal.leave()

    async def stop(self) -> None:
        self._journal.close()
        await super().stop()

    async def fail(self, cause: str, code: str, age_s: float) -> None:
        self._journal.tell(cause, age_s)

    def broke(self, error: BaseException) -> None:
        if not isinstance(error, ReleasedError):
            self._journal.tell(f"{type(error).__name__}: {error}", 0.0)

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        match message:
            case Verdict():
                self.decided(message)
            case ColdEnded():
                self.cold_news(message)
                self._journal.cold(ColdEnd(message.op, message.ok, message.points))

    def next_record(self) -> Record | None:
        if not self._journal.due:
            return None
        record = self._journal.next(self.point)
        self._report.arrived(record.submits)
        return record

    def taken(self, taken: Taken, before: Point) -> None:
        for outcome in taken.outcomes:
            if isinstance(outcome, Refused):
                raise JournalContractError(
                    f"rank 0 took {outcome.id} in, rank {self.context.rank} refuses it "
                    f"({outcome.code})"
                )

    def rested(self) -> None:
        self._journal.finish(self.point)
