"""Tells systemd that the service is ready, where systemd started it (sd_notify's protocol)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Send `state`, such as READY=1. Without a service manager, or where it does not listen,
    nothing happens."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
