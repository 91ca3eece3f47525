"""A simulated TCP connection between two ranks: ordered bytes, late, in pieces, until it breaks."""

from __future__ import annotations

import asyncio

from rank_loop import INSTANT_S

PIECE = 0.3
"""How often what was written at once arrives in two pieces."""


class End(asyncio.Transport):
    """One end, as the protocol's transport."""

    def __init__(self, wire, loop) -> None:
        super().__init__()
        self._wire = wire
        self.loop = loop
        self.protocol = None
        self.other = None
        self.due = 0.0
        self.early = []
        self.over = False
        self.frames = 0

    def attach(self, factory):
        """The protocol takes over; what had come in already follows."""
        self.protocol = factory()
        self.protocol.connection_made(self)
        early, self.early = self.early, []
        for callback, args in early:
            self._now(callback, *args)

    def write(self, data):
        if not self.over:
            self._wire.carry(self, bytes(data))

    def close(self):
        if not self.over:
            self.over = True
            self._wire.end(self, None)
            self.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self):
        self.close()

    def get_write_buffer_size(self):
        return 0

    def receive(self, data):
        self._now(self._receive, data)

    def lose(self, error):
        self._now(self._lose, error)

    def _now(self, callback, *args):
        if self.protocol is None:
            self.early.append((callback, args))
        else:
            callback(*args)

    def _receive(self, data):
        if not self.over:
            self.protocol.data_received(data)

    def _lose(self, error):
        if not self.over:
            self.over = True
            self.protocol.connection_lost(error)


class Wire:
    """The connection between rank 0's `loops[0]` and another rank's; `fault` may spoil a frame."""

    def __init__(self, loop, rng, leader_loop, rank_loop, *, delay_s=2e-3) -> None:
        self._loop = loop
        self._rng = rng
        self.delay_s = delay_s
        self.silent = False
        self.spoil = None
        self.leader = End(self, leader_loop)
        self.rank = End(self, rank_loop)
        self.leader.other, self.rank.other = self.rank, self.leader

    def carry(self, end, data):
        """Bring `data` to the other end, after what was written before it."""
        end.frames += 1
        if self.spoil is not None:
            data = self.spoil(end, data)
        if self.silent or not data:
            return
        pieces = [data]
        if len(data) > 1 and self._rng.random() < PIECE:
            at = self._rng.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._deliver(end.other, End.receive, piece)

    def end(self, end, error):
        """The other end learns that this one is over."""
        if not self.silent:
            self._deliver(end.other, End.lose, error)

    def cut(self):
        """The connection breaks: both ends learn of it, what was under way is lost."""
        for end in (self.leader, self.rank):
            self._deliver(end, End.lose, ConnectionResetError(104, "Connection reset by peer"))
        self.silent = True

    def _deliver(self, end, what, argument):
        # Timers of one moment run in any order: each is a little later than the one before.
        due = max(end.due + INSTANT_S, self._loop.time() + self._rng.random() * self.delay_s)
        end.due = due
        end.loop.call_at(due, what, end, argument)
