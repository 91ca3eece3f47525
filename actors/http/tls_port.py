"""A port where TLS is spoken: connections count from the moment they are accepted."""

from __future__ import annotations

import asyncio
import logging
import socket

from actors.http.connection import Connection, Listener
from actors.http.credentials import Certificate
from dgpp.serve.limits import HEAD_SECONDS

RETRY_S = 1.0
"""What a host out of files gets before it is asked again."""

_log = logging.getLogger("dgpp.http")


class TlsPort:
    """Accepts on `listening` until it is closed, and hands over to `listener` whoever has agreed on
    TLS in time. One too many is dropped at once: before TLS there is no way to tell it why."""

    def __init__(
        self, listening: socket.socket, listener: Listener, certificate: Certificate
    ) -> None:
        listening.setblocking(False)
        self._listener = listener
        self._certificate = certificate
        self._agreeing: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._accept(listening))
        self._task.add_done_callback(lambda _: listening.close())

    def close(self) -> None:
        for task in (self._task, *self._agreeing):
            task.cancel()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.error("cannot accept connections: %s", error.strerror)
                await asyncio.sleep(RETRY_S)
                continue
            if self._listener.full:
                self._listener.refused()
                client.close()
                continue
            connection = self._listener()
            self._listener.handshakes.add(connection)
            task = loop.create_task(self._agree(client, connection))
            self._agreeing.add(task)
            task.add_done_callback(self._agreeing.discard)

    async def _agree(self, client: socket.socket, connection: Connection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._certificate.context,
                ssl_handshake_timeout=HEAD_SECONDS,
            )
        except OSError:
            # ssl.SSLError and TimeoutError are among them: whoever speaks no TLS gets no answer.
            client.close()
        finally:
            self._listener.handshakes.discard(connection)
