"""What a supervisor and its children tell each other, and the socket that carries it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

_TEXT_LIMIT = 4096
_DATAGRAM_BYTES = 64 << 10


class Ready(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: `start` returned; the actor is able to serve."""


class Serving(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: `serve` returned."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: busy with `what`, perhaps without a heart-beat; empty: done with it."""

    what: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: the error that ends this process and so the world. One without a `kind`
    is no error of this process: it tells what happened elsewhere."""

    kind: str
    message: str
    exit_status: int
    age_s: float = 0.0

    def cause(self, who: str) -> str:
        """Why the world ends, as `who` said it."""
        return f"{who} failed: {self.kind}: {self.message}" if self.kind else self.message


class Drained(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: all that was taken is answered."""


class End(msgspec.Struct, frozen=True, tag=True):
    """child → supervisor: the world is to end in order, as after a signal, because of `why`."""

    why: str


class Serve(msgspec.Struct, frozen=True, tag=True):
    """supervisor → child: every actor of the rank is ready."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """supervisor → child: take nothing new; finish within `timeout_s`."""

    timeout_s: float


class Fail(msgspec.Struct, frozen=True, tag=True):
    """supervisor → child: the world broke by `cause` `age_s` seconds ago; tell whoever waits
    outside, with error code `code`."""

    cause: str
    code: str
    age_s: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """supervisor → child: release everything and exit."""


FromChild = Ready | Serving | Loading | Failed | Drained | End
FromSupervisor = Serve | Drain | Fail | Stop


def failed(error: BaseException, exit_status: int) -> Failed:
    """`error` as a message, cut to what fits; a named error brings its own exit status, and how
    long ago it happened where that is not now."""
    status = getattr(error, "exit_status", exit_status)
    age_s = getattr(error, "age_s", 0.0)
    kind = "" if getattr(error, "elsewhere", False) else type(error).__name__
    return Failed(kind, str(error)[:_TEXT_LIMIT], status, age_s)


def control_pair() -> tuple[socket.socket, socket.socket]:
    """Supervisor's and child's end; message boundaries are kept, the peer's death ends it."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ControlChannel:
    """One end. `on_message` hears each decoded message; `on_end`, once, that the peer is gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        incoming: Any,
        on_message: Callable[[Any], object],
        on_end: Callable[[], object],
    ) -> None:
        end.setblocking(False)
        self._loop = loop
        self._socket = end
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._on_message = on_message
        self._on_end = on_end
        loop.add_reader(end.fileno(), self.receive)

    def send(self, message: msgspec.Struct) -> None:
        """A peer that is gone, or that left hundreds of messages unread, misses it: its end is
        seen elsewhere."""
        if self._socket.fileno() < 0:
            return
        try:
            self._socket.send(msgspec.msgpack.encode(message))
        except (BlockingIOError, ConnectionError):
            return

    def receive(self) -> None:
        """Deliver what lies in the socket."""
        while self._socket.fileno() >= 0:
            try:
                datagram = self._socket.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                datagram = b""
            if not datagram:
                self.close()
                self._on_end()
                return
            self._on_message(self._decoder.decode(datagram))

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
