"""A rank's journal connections as its supervisor holds them, beside the scheduler whose they are.

The scheduler speaks and listens. Where it cannot, since it is not up yet, or is gone, or stopped,
the supervisor says the last words in its place, and hears rank 0's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from actors.journal_join import Connection, last_words
from dgpp.net.journal_frames import JOIN_BYTES, frame
from dgpp.net.journal_messages import Ended, FromLeader


class JournalEnds:
    """Closing these ends no connection while the scheduler has its own."""

    def __init__(self, connections: Iterable[Connection] = ()) -> None:
        self._connections = list(connections)

    def say(self, words: msgspec.Struct) -> None:
        """To all at the other ends; whether it is heard does not matter any more. They get time for
        that until `close`: a connection that is reset may lose what is not read yet."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.socket.send(frame(words))
                while connection.socket.recv(JOIN_BYTES):
                    pass

    def heard(self) -> str | None:
        """How rank 0 has ended the world, where that stands in what nobody has read yet."""
        for connection in self._connections:
            try:
                ended = last_words(connection, FromLeader)
            except EOFError:
                return "rank 0 is gone: its journal connection ended"
            if isinstance(ended, Ended):
                return ended.words
        return None

    def close(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        self._connections = []
