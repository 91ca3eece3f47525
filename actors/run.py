"""Run the world of one rank in the calling process's main thread, until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import uvloop

from actors.inline import InlineWorld
from actors.processes import ProcessWorld
from actors.supervisor import Settings, Supervisor, World
from actors.topology import Topology

Placement = Literal["processes", "inline"]


def run_world(
    topology: Topology,
    boot: Mapping[str, bytes],
    *,
    placement: Placement = "processes",
    settings: Settings | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> int:
    """Returns the exit status: 0 orderly, 1 failed to start, 2 failed while serving or forced.

    `boot` holds each role's own msgpack. `on_ready` is called once, when every actor serves.
    Handles SIGINT, SIGTERM and SIGHUP; must run in the main thread. Raises TopologyError.
    """
    topology.validate()
    chosen = settings or Settings()

    async def live() -> int:
        world: World
        if placement == "inline":
            world = InlineWorld(topology, boot, loop=asyncio.get_running_loop())
        else:
            world = ProcessWorld(topology, boot, chosen)
        return await Supervisor(world, chosen, on_ready).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(live())
