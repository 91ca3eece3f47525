"""Run one rank's world in the calling process's main thread, until it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Literal

import uvloop

from actors.inline import InlineWorld
from actors.processes import ProcessWorld
from actors.supervisor import SIGNALS, Settings, Supervisor, World
from actors.topology import Topology

Placement = Literal["processes", "inline"]


def make_world(
    topology: Topology, boot: Mapping[str, bytes], placement: Placement, settings: Settings
) -> World:
    """The world of one rank's actors, on the running loop. `boot` holds each role's own msgpack."""
    if placement == "inline":
        return InlineWorld(topology, boot, loop=asyncio.get_running_loop())
    return ProcessWorld(topology, boot, settings)


def supervise(
    make: Callable[[], World], settings: Settings, on_ready: Callable[[], object] = lambda: None
) -> int:
    """Run what `make` makes. Returns the exit status: 0 orderly, 1 failed to start, 2 failed while
    serving or forced, 3 released by another rank.

    `on_ready` is called once, when every actor serves. Handles SIGINT, SIGTERM and SIGHUP, and
    ignores them from then on: the status is settled, and a late signal must not become it. Must run
    in the main thread. What `start` of the world raises passes through.
    """

    async def live() -> int:
        status = await Supervisor(make(), settings, on_ready).run()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return status

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live())


def run_world(
    topology: Topology,
    boot: Mapping[str, bytes],
    *,
    placement: Placement = "processes",
    settings: Settings | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> int:
    """`supervise` for a world of one rank. Raises TopologyError."""
    topology.validate()
    chosen = settings or Settings()
    return supervise(lambda: make_world(topology, boot, placement, chosen), chosen, on_ready)
