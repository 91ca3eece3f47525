"""A bus of ranks in threads of this process, and what calls every kernel of one."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from dgpp.net.roce import chosen
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.packages import PACKAGES, load
from dgpp.net.verbs.poller import Meeting, Poller
from dgpp.net.verbs.slab import create_bus
from dgpp.net.watch import LOADING
from kernels_numba.cpu import bus as bus_kernels
from kernels_numba.cpu.memory import Block

GEOMETRY = Geometry(8, 8192, 8, 65536)
WIDTH = GEOMETRY.latency_slot_bytes // 4
"""A row is a latency slot."""
PATIENCE_S = 120.0
"""The machine is emulated, and others may have its processor."""


@contextmanager
def bus(devices, gid_index, world, packages=tuple(PACKAGES)):
    """On the devices in turn, one lane each: calls a function on all ranks at once."""
    library, layout = load(packages), Layout(GEOMETRY, 1, world)
    lanes = chosen(devices, [gid_index] * len(devices))
    ports = [library.open(lanes[rank % len(lanes)], gid_index) for rank in range(world)]
    files = [create_bus(layout) for _ in ports]
    pollers = [Poller(files[rank], rank, layout, [port]) for rank, port in enumerate(ports)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meeting = Meeting("127.0.0.1", listener.getsockname()[1], b"token" * 8, "1", PATIENCE_S)

        async def join():
            await asyncio.gather(
                *(poller.join(meeting, None if poller.rank else listener) for poller in pollers)
            )

        asyncio.run(join())
    ranks = [VerbsCollective(files[rank], rank, layout, serving=LOADING) for rank in range(world)]
    with ThreadPoolExecutor(2 * world) as pool:
        runs = [pool.submit(poller.run) for poller in pollers]

        def go(function):
            return [job.result(PATIENCE_S) for job in [pool.submit(function, it) for it in ranks]]

        try:
            go(lambda rank: rank.join(PATIENCE_S))
            yield go
            go(lambda rank: rank.close())
        except BaseException:
            # Else the pool would wait for them, and nobody would see why.
            for poller in pollers:
                poller.stop()
            raise
        for run in runs:
            run.result(PATIENCE_S)
    for made in (*pollers, *ports, *files):
        made.close()


def exercise(rank: VerbsCollective, width: int) -> None:
    """Sums of `width` values and gathers, through either pool, and a barrier."""
    for rows in (1, 3):
        part, out = (Block(np.zeros((rows, width), np.float32)) for _ in range(2))
        rank.all_reduce(rows, part, out)
        rank.all_reduce(rows, part, out, add=False)
        rank.all_gather(part.array[:rows])
    rank.barrier()
    # What only a rank calls that waits for room, or that finds something wrong.
    end = rank._ends.bulk(rank._ends.peers[0], 0)
    bus_kernels.due_credit(end.record)
    bus_kernels.announced(end.record)
    held = np.zeros(bus_kernels.CELL_WORDS, np.int64)
    bus_kernels.copy_cell(bus_kernels.due_cell(end.record), int(held.ctypes.data))
    bus_kernels.lie_down(rank.slab.arrivals)
    bus_kernels.get_up(rank.slab.arrivals)
    bus_kernels.arrive(rank.slab.arrivals)
