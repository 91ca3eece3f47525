"""The metrics of a rank beyond the first: rank 0's front end cannot see them."""

from __future__ import annotations

from aiohttp import web

from actors.context import Context
from actors.http.body import check_head
from actors.http.connection import Listener
from actors.http.endpoint import Endpoint
from actors.http.gate import Gate
from actors.http.routes import error_response
from actors.http.snapshot import rank_snapshot
from actors.role import Role
from dgpp.config.ports import metrics_port
from dgpp.serve.errors import ApiError
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
        self._gate: Gate
        self._endpoint: Endpoint | None = None

    async def start(self) -> None:
        http = self.boot.settings.http
        self._gate = Gate(http, self.context.clock, unix=False)
        port = metrics_port(self.boot.settings, self.boot.rank)
        self._endpoint = await Endpoint.on_port(
            self._listener, http.bind_host, port, "ports.metrics", None
        )

    async def stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
        await self._listener.shutdown(1.0)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            check_head(request)
            self._gate.check(request)
        except ApiError as error:
            return error_response(error)
        if request.path != PATH:
            return web.Response(status=404, text=f"this rank answers {PATH} alone\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        snapshot = rank_snapshot(self.boot, self.context.peers, self.context.clock())
        text = ranks_text(snapshot, self.boot.served.id)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})
