"""The metrics of a rank beyond the first: rank 0's front end cannot see them."""

from __future__ import annotations

import asyncio

from aiohttp import web

from actors.context import Context
from actors.http.connection import Listener
from actors.http.snapshot import rank_snapshot
from actors.role import Role
from actors.world import metrics_port
from dgpp.errors import ConfigError
from dgpp.serve.prometheus import CONTENT_TYPE, ranks_text

PATH = "/metrics/prometheus"
MAX_CONNECTIONS = 16


class PeerMetricsActor(Role):
    """Answers GET on one path, nothing else."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._listener = Listener(
            self._answer, max_connections=MAX_CONNECTIONS, refused=lambda: None
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = self.boot.settings.http.bind_host, metrics_port(self.boot)
        try:
            self._server = await self.context.loop.create_server(self._listener, host, port)
        except OSError as error:
            raise ConfigError(
                f"ports.metrics: cannot listen on {host}:{port}: {error.strerror}"
            ) from error

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._listener.shutdown(1.0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != PATH:
            return web.Response(status=404, text=f"this rank answers {PATH} alone\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        snapshot = rank_snapshot(self.boot, self.context.peers, self.context.clock())
        text = ranks_text(snapshot, self.boot.served.id)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
