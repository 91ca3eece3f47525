"""The base of every role: a handful of hooks, each with a default that does nothing."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from actors.channel import Arrays
from actors.context import Context


class Actor:
    """One role. It sees its context and its messages, never the placement of its peers.

    Order of calls: `__init__`, `start`, then `receive` for each message, `serve` once all actors
    of the rank have started, at the end `drain` (of roles that face outside) and `stop`; or
    `fail` (of roles that face outside) when the world broke, `broke` when this actor did. An
    exception out of any of them ends the world with that error named.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    async def start(self) -> None:
        """Load whatever serving needs. Returning means able to serve."""

    async def serve(self) -> None:
        """Every actor of the rank is able to serve: open doors to the outside now."""

    def receive(self, channel: str, message: Any, arrays: Arrays) -> Awaitable[None] | None:
        """Handle one message of `channel` ("source>target").

        Called straight from the event loop: work of more than 5 ms blocks it. When an awaitable
        is returned, no further message is delivered until it is done, except on channels declared
        `always_drain`, whose messages must be handled at once (return None). `arrays` are
        read-only views, valid until the handler is done unless `arrays.retain()` was called.
        """
        raise NotImplementedError(f"{type(self).__name__} has no handler for {channel}")

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new and return when all that was taken is answered; the caller waits
        `timeout_s` seconds at most. Roles drain one after the other, in the order of `stop`."""

    async def stop(self) -> None:
        """Release what `start` acquired. Work of `context.spawn` is cancelled already, nothing is
        delivered any more and `context.post` does nothing."""

    async def fail(self, cause: str, code: str, age_s: float) -> None:
        """The world broke `age_s` seconds ago: tell whoever waits outside, with the error code
        `code`. The other actors are gone."""

    def broke(self, error: BaseException) -> None:
        """This actor failed with `error`, and with it the world: last words, said at once."""
