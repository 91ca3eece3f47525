"""A whole bus over real devices: pollers meet over TCP, ranks sum and gather, and end in order."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from dgpp.net.roce import chosen
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.packages import load
from dgpp.net.verbs.poller import Meeting, Poller
from dgpp.net.verbs.slab import create_bus
from dgpp.net.watch import LOADING
from kernels_numba.cpu.memory import Block

GEOMETRY = Geometry(4, 8192, 4, 65536)


@contextmanager
def bus(devices, gid_index, world, package):
    """Ranks in threads of this process, on the devices in turn, one lane each."""
    library, layout = load([package]), Layout(GEOMETRY, 1, world)
    lanes = chosen(devices, [gid_index] * len(devices))
    ports = [library.open(lanes[rank % len(lanes)], gid_index) for rank in range(world)]
    files = [create_bus(layout) for _ in ports]
    pollers = [Poller(files[rank], rank, layout, [port]) for rank, port in enumerate(ports)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meeting = Meeting("127.0.0.1", listener.getsockname()[1], b"token" * 8, "1", 60.0)

        async def join():
            await asyncio.gather(
                *(poller.join(meeting, None if poller.rank else listener) for poller in pollers)
            )

        asyncio.run(join())
    ranks = [VerbsCollective(files[rank], rank, layout, serving=LOADING) for rank in range(world)]
    with ThreadPoolExecutor(2 * world) as pool:
        runs = [pool.submit(poller.run) for poller in pollers]

        def go(function):
            return [job.result(60) for job in [pool.submit(function, rank) for rank in ranks]]

        go(lambda rank: rank.join(60))
        yield go
        go(lambda rank: rank.close())
        for run in runs:
            run.result(60)
    for made in (*pollers, *ports, *files):
        made.close()


@pytest.mark.parametrize("world", [2, 4])
def test_sums_and_gathers_of_both_pools(devices, gid_index, world, package):
    with bus(devices, gid_index, world, package) as go:
        for rows, width in ((1, 5), (2, 1024), (40, 1000), (300, 1024)):
            parts = np.random.default_rng(rows).standard_normal((world, rows, width), np.float32)

            def reduce(rank, parts=parts):
                out = Block(np.zeros(parts.shape[1:], np.float32))
                rank.all_reduce(len(out.array), Block(parts[rank.rank].copy()), out)
                return out.array

            wanted = parts[0].copy()
            for part in parts[1:]:
                wanted += part
            for result in go(reduce):
                np.testing.assert_array_equal(result, wanted)
        for count in (3, 100_000):
            for told in go(lambda rank, count=count: rank.all_gather(np.arange(count) * rank.rank)):
                np.testing.assert_array_equal(told, np.arange(count) * np.arange(world)[:, None])
        go(lambda rank: rank.barrier())
