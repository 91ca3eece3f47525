"""Where a server listens: a TCP port, with TLS or without, or a UNIX socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from actors.http.connection import Listener
from actors.http.credentials import Certificate
from actors.http.socket_file import stale
from actors.http.tls_port import TlsPort
from dgpp.errors import ConfigError
from dgpp.net.listening import Listen, cannot_listen

BACKLOG = 1024
SOCKET_MODE = 0o660
"""Owner and group may connect."""


class Endpoint:
    """A listening socket until it is closed. Raises ConfigError naming `key` where it cannot be."""

    def __init__(self, server: asyncio.Server | TlsPort, path: Path | None = None) -> None:
        self._server = server
        self._path = path
        self._inode = _inode(path) if path else 0

    @classmethod
    async def on_port(
        cls, listener: Listener, host: str, port: int, key: str, certificate: Certificate | None
    ) -> Endpoint:
        server: asyncio.Server | TlsPort
        try:
            if certificate is None:
                loop = asyncio.get_running_loop()
                server = await loop.create_server(listener, host, port, backlog=BACKLOG)
            else:
                listening = socket.create_server((host, port), backlog=BACKLOG)
                server = TlsPort(listening, listener, certificate)
        except OSError as error:
            raise ConfigError(cannot_listen(Listen(key, host, port), error)) from error
        return cls(server)

    @classmethod
    async def on_path(cls, listener: Listener, path: str) -> Endpoint:
        """A socket file that its owner and group may connect to."""
        try:
            listening, file = _bound(path)
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(listener, sock=listening, backlog=BACKLOG)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"http.unix_socket = {path}: {why}") from error
        return cls(server, file)

    def close(self) -> None:
        """Accept no more; the socket file goes, unless another server has put its own there."""
        self._server.close()
        if self._path is not None and _inode(self._path) == self._inode:
            with suppress(OSError):
                self._path.unlink()


def _bound(path: str) -> tuple[socket.socket, Path]:
    file = Path(path).expanduser()
    if stale(file):
        file.unlink()
    with ExitStack() as undo:
        bound = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        bound.bind(str(file))
        # Nobody can connect before it listens, so the mode is right for everybody.
        file.chmod(SOCKET_MODE)
        undo.pop_all()
    return bound, file


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
