"""The poller's actor: a rank's end of the RoCE bus, in a thread that waits for nothing else."""

from __future__ import annotations

import asyncio
import socket

from actors.bus import bus_files, bus_layout
from actors.context import Context
from actors.journal_join import listen
from actors.role import Role
from dgpp.net.roce import chosen
from dgpp.net.verbs.carrier import BULK_OUT
from dgpp.net.verbs.library import Port
from dgpp.net.verbs.packages import load
from dgpp.net.verbs.poller import Meeting, Poller


class PollerActor(Role):
    """Meets the other ranks' pollers when it starts, then carries until the engine has left."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert self.boot.bus is not None
        self._bus = self.boot.bus
        self._ports: list[Port] = []
        self._poller: Poller | None = None
        self._running: asyncio.Future[None] | None = None

    async def start(self) -> None:
        listener = self._listener()
        try:
            self._open()
            assert self._poller is not None
            await self._poller.join(self._meeting(), listener)
        finally:
            if listener is not None:
                listener.close()
        self._running = self.context.loop.run_in_executor(None, self._poller.run)
        self.context.spawn(self._watch(self._running))

    async def stop(self) -> None:
        if self._poller is None or self._running is None:
            return
        self._poller.stop()
        await asyncio.wait([self._running])
        self._poller.close()
        for port in self._ports:
            port.close()

    async def _watch(self, running: asyncio.Future[None]) -> None:
        # A cancelled watch must not give up a thread that is still at work.
        await asyncio.shield(running)

    def _listener(self) -> socket.socket | None:
        if self.boot.rank:
            return None
        return listen(self._bus.host, self.boot.settings.ports.fabric, "ports.fabric")

    def _open(self) -> None:
        files = bus_files(self.context.files)
        try:
            library = load()
            for lane in self._bus.lanes:
                (device,) = chosen([lane.device], [lane.gid])
                self._ports.append(library.open(device, lane.gid))
            engine, layout = self.boot.settings.engine, bus_layout(self.boot)
            self._poller = Poller(
                files, self.boot.rank, layout, self._ports,
                pace_gbps=None if engine.bulk_pace_gbps < 0 else engine.bulk_pace_gbps,
                bulk_out=BULK_OUT if engine.bulk_inflight < 0 else engine.bulk_inflight,
            )  # fmt: skip
        finally:
            files.close()

    def _meeting(self) -> Meeting:
        settings = self.boot.settings
        return Meeting(
            self._bus.host,
            settings.ports.fabric,
            self._bus.token,
            self.boot.version,
            settings.engine.rendezvous_timeout_ms / 1e3,
        )
