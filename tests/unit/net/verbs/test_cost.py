"""What the poller's loop costs of its own, over an adapter that costs next to nothing."""

from __future__ import annotations

import time

import fake_verbs
import null_adapter
import numpy as np
import pytest
from fake_verbs import FakePair, address_of
from fake_world import World, world_of

from dgpp.net.verbs.frames import Geometry, Pool
from dgpp.net.verbs.library import Calls
from kernels_numba.cpu import bus
from kernels_numba.cpu.atomics import store_release
from kernels_numba.cpu.poller import turn
from kernels_numba.jit import kernel

MESSAGES = 100_000


@kernel()
def drive(loop: int, ready: int, messages: int, step: int) -> int:
    """So many turns of the poller, each with `step` messages more; how many turns failed."""
    failed = 0
    for message in range(1, messages + 1):
        store_release(ready, message * step)
        failed += int(turn(loop) < 0)
    return failed


class NullPair(FakePair):
    """Connected to nothing."""

    def __init__(self, port, completions, depth) -> None:
        super().__init__(port, completions, depth)
        self.null = np.zeros(null_adapter.WORDS, np.int64)
        queue = completions.words
        queue[queue[0]] = address_of(self.null)
        self.calls = Calls(
            address_of(self.null),
            self.calls.queue,
            null_adapter.post_send.address,
            null_adapter.post_receive.address,
            null_adapter.poll.address,
        )


def cost_us(world_size, lanes, step):
    """Of a turn that posts `step` messages, polls what reports, and posts as many receives."""
    with world_of(world_size, lanes, kind=World, geometry=Geometry()) as world:
        poller = world.pollers[0]
        place = poller.layout.place(0, 1, 0, Pool.LATENCY)
        cell = poller.slab.address + place.send_cells
        for slot in range(place.slots):
            bus.write_cell(cell + 64 * slot, slot + 1, 1, 0, 4096 | slot << 32, 0)
        loop, ready = poller.carrier._address, poller.slab.address + place.ready
        drive(loop, ready, 1, 0)
        began = time.perf_counter()
        assert drive(loop, ready, MESSAGES, step) == 0
        seconds = time.perf_counter() - began
        assert poller.carrier.figures["messages"] == MESSAGES * step
        return seconds / MESSAGES * 1e6


@pytest.mark.bench
def test_cost_per_message(monkeypatch, capsys):
    monkeypatch.setattr(fake_verbs, "FakePair", NullPair)
    for world_size, lanes in ((2, 1), (4, 2)):
        with_one, without = (
            min(cost_us(world_size, lanes, step) for _ in range(5)) for step in (1, 0)
        )
        with capsys.disabled():
            print(
                f"\nworld {world_size}, lanes {lanes}: {with_one:.3f} us a turn that posts a "
                f"message, {without:.3f} us one that finds nothing"
            )
