"""A rank's journal connections as its supervisor holds them, beside the scheduler whose they are.

The scheduler speaks and listens. Where it cannot, since it is not up yet, or is gone, or stopped,
the supervisor says the last words in its place, and hears those of others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from actors.journal_join import Connection, last_words
from dgpp.net.journal_frames import JOIN_BYTES, frame
from dgpp.net.journal_messages import Ended, FromLeader, FromRank, Leave


class Heard(NamedTuple):
    """What the supervisor of `rank` said at last; None where its connection just ended."""

    rank: int
    words: Ended | Leave | None


class JournalEnds:
    """Closing these ends no connection while the scheduler has its own."""

    def __init__(self, connections: Mapping[int, Connection] | None = None) -> None:
        self._connections = dict(connections or {})

    def say(self, words: msgspec.Struct) -> None:
        """To all at the other ends; whether it is heard does not matter any more. They get time for
        that until `close`: a connection that is reset may lose what is not read yet."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.socket.send(frame(words))
                while connection.socket.recv(JOIN_BYTES):
                    pass

    def heard(self) -> Heard | None:
        """Last words, where some stand in what nobody has read yet; else who has hung up."""
        gone: Heard | None = None
        for rank, connection in self._connections.items():
            try:
                words = last_words(connection, FromRank if rank else FromLeader)
            except EOFError:
                gone = Heard(rank, None)
                continue
            if words is not None:
                return Heard(rank, words)
        return gone

    def close(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections = {}
