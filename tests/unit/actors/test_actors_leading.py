"""What rank 0's supervisor makes of the end of another rank."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from actors.journal_ends import JournalEnds
from actors.journal_join import Connection
from actors.leading import LeadingWorld
from actors.supervisor import Failure, Settings
from dgpp.net.journal_frames import frame
from dgpp.net.journal_messages import Beat, Ended

EXITED = Failure("rank 1 exited with status 2", 2)
CAUSE = "scheduler of rank 1 was killed by signal 9"


def told(*messages: Any) -> Failure:
    """The cause that rank 0 gives, where its scheduler has not read `messages` of rank 1 when that
    is found to have ended."""

    async def run() -> Failure:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            nobody: Any = None
            world = LeadingWorld(
                listener=nobody, roster=nobody, timeout_s=1.0, specs=(), page=None,
                settings=Settings(), make_inner=nobody,
            )  # fmt: skip
            world._ends = JournalEnds({1: Connection(ours, b"")})
            for number, message in enumerate(messages, 1):
                theirs.send(frame(message, 0 if isinstance(message, Ended) else number))
            theirs.close()
            world._rank_failed(EXITED)
            return world.failure.result()

    return asyncio.run(run())


@pytest.mark.parametrize("before", [0, 1, 5])
def test_the_cause_that_a_rank_told_goes_before_how_its_process_ended(before):
    found = told(*[Beat()] * before, Ended(1, CAUSE, 0.25))
    assert found == Failure(f"rank 1: {CAUSE}", 2, 0.25)


@pytest.mark.parametrize("messages", [(), (Beat(), Beat())])
def test_where_it_told_nothing_its_process_ended(messages):
    assert told(*messages) == EXITED
