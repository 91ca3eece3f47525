"""Whether something can be listened on, tried before anything is built that would wait for it."""

from __future__ import annotations

import os
import socket

import msgspec


class Listen(msgspec.Struct, frozen=True):
    """An address and TCP port that the configuration key `key` names."""

    key: str
    host: str
    port: int


def obstacle(wanted: Listen) -> OSError | None:
    """What keeps this host from listening there; None: nothing does, now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((wanted.host, wanted.port))
        except OSError as error:
            return error
    return None


def cannot_listen(wanted: Listen, error: OSError) -> str:
    """The one sentence for it. Event loops put words of their own around the system's."""
    why = os.strerror(error.errno) if error.errno else str(error)
    return f"{wanted.key}: cannot listen on {wanted.host}:{wanted.port}: {why}"
