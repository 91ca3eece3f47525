"""Pollers as they run in service: met over TCP, each in a thread, over a fake network."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from fake_verbs import Fabric
from fake_world import QUICK, PolledWorld, World, world_of
from ranks import SMALL

from dgpp.net.errors import CollectiveError, PeerLeftError
from dgpp.net.journal_errors import JoinError
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.errors import BusStartError, PollerError
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.poller import Meeting, Poller, picoseconds, share
from dgpp.net.verbs.slab import State, create_bus
from dgpp.net.verbs.slots import device_records
from dgpp.net.watch import LOOK_S
from kernels_numba.cpu import bus
from kernels_numba.cpu import poller as loop
from kernels_numba.cpu.memory import Block

MESSAGES = 20


def sums(rank, steps=20):
    out = Block(np.zeros((30, 7), np.float32))
    part = Block(np.full((30, 7), rank.rank + 1, np.float32))
    for step in range(steps):
        rank.all_reduce(1 + step % 30, part, out)
    return float(out.array[0, 0])


@pytest.mark.parametrize("nap_s", [0.0, 1e9], ids=["naps", "spins"])
def test_pollers_carry_whether_they_nap_or_spin(nap_s):
    with world_of(2, kind=PolledWorld, nap_s=nap_s) as world:
        assert world.run(sums) == [60.0, 60.0]
        naps = [poller.naps for poller in world.pollers]
        assert all(naps) if nap_s == 0.0 else not any(naps)


def test_what_a_device_puts_into_its_slots_leaves_without_a_bell():
    """A poller that waited for one would sleep until its next look."""
    geometry = Geometry(4, 64, 2, 256, device_slots=4, device_slot_bytes=64)
    with world_of(2, 1, geometry, kind=PolledWorld, nap_s=0.0) as world:
        slabs = [poller.slab for poller in world.pollers]
        near, far = (device_records(slab)[1 - slab.rank, 0] for slab in slabs)
        near_at, far_at = int(near.ctypes.data), int(far.ctypes.data)
        payload, took = np.array([7], np.int64), []
        source = int(payload.ctypes.data)
        for number in range(1, MESSAGES + 1):
            began = time.monotonic()
            while not bus.room(near_at):
                assert time.monotonic() < began + 30
            bus.send(near_at, source, 8, bus.fold(source, 1), number, 5)
            while not bus.take(far_at, number, 5):
                assert time.monotonic() < began + 30
            bus.give_back(far_at)
            took.append(time.monotonic() - began)
        assert sorted(took)[MESSAGES // 4] < LOOK_S / 4


def test_a_poller_that_ends_in_order_leaves_the_others_alone():
    with world_of(2, kind=PolledWorld) as world:
        world.run(sums)
        world.ranks[0].close()
        world.carrying[0].result(10)
        assert world.pollers[0].slab.state is State.ENDED
        with pytest.raises(PeerLeftError, match=r"rank 0 .*has left before a barrier"):
            world.ranks[1].barrier()
        assert not world.carrying[1].done()


def freeze_poller(world):
    """It is not heard of any more; its adapter goes on answering."""
    world.pollers[1].carrier.carry = lambda *_until: world.stopped.wait()


def freeze_engine(world):
    world.ranks[1].beater.stop()


def unplug(world):
    for port in world.ports[1]:
        world.fabric.kill(port.name)


@pytest.mark.parametrize(
    ("world_size", "harm"), [(2, freeze_poller), (4, freeze_engine), (2, unplug)]
)
def test_a_silent_rank_is_named_on_every_other(world_size, harm):
    with world_of(world_size, kind=PolledWorld) as world:
        world.run(sums)
        harm(world)
        began = time.monotonic()
        errors = world.errors(lambda rank: rank.barrier() if rank.rank != 1 else None)
        assert time.monotonic() - began < 6 * QUICK.silent_s
        for rank, error in enumerate(errors):
            if rank != 1:
                assert isinstance(error, CollectiveError)
                assert "rank 1" in str(error)
                assert world.ranks[rank].slab.blamed(rank) == 1


def test_a_rank_whose_own_poller_stands_still_says_so():
    with world_of(2, kind=PolledWorld) as world:
        world.run(sums)
        freeze_poller(world)
        with pytest.raises(PollerError, match=r"this rank's poller: .*no heart-beat for 1 s"):
            world.ranks[1].barrier()


def meet(tokens, timeout_s=10.0):
    """Two pollers over TCP; what each of them and each of their engines got."""
    layout, fabric = Layout(SMALL, 1, 2), Fabric()
    ports = [[fabric.port(f"r{rank}")] for rank in range(2)]
    files = [create_bus(layout) for _ in ports]
    pollers = [Poller(files[rank], rank, layout, ports[rank]) for rank in range(2)]

    async def join(listener):
        port = listener.getsockname()[1]
        joins = [
            poller.join(
                Meeting("127.0.0.1", port, tokens[poller.rank], "1.0", timeout_s),
                None if poller.rank else listener,
            )
            for poller in pollers
        ]
        return await asyncio.gather(*joins, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = asyncio.run(join(listener))
    engines = [VerbsCollective(files[rank], rank, layout) for rank in range(2)]
    return pollers, engines, [*ports[0], *ports[1], *files], told


def test_pollers_meet_sum_and_end_in_order():
    pollers, engines, others, told = meet([b"t" * 16] * 2)
    assert told == [None, None]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(poller.run) for poller in pollers]
        for job in [pool.submit(engine.join, 10.0) for engine in engines]:
            job.result(20)
        jobs = [pool.submit(sums, engine) for engine in engines]
        assert [job.result(20) for job in jobs] == [60.0, 60.0]
        for engine in engines:
            engine.close()
        for run in runs:
            run.result(10)
    for made in (*pollers, *others):
        made.close()


def test_what_keeps_a_poller_from_starting_is_told_to_its_engine():
    pollers, engines, others, told = meet([b"t" * 16, b"u" * 16], timeout_s=0.5)
    assert all(isinstance(error, JoinError) for error in told)
    for engine, words in zip(engines, ("rank 1 did not come", "wrong cluster token"), strict=True):
        with pytest.raises(BusStartError, match=words) as raised:
            engine.join(1.0)
        assert raised.value.exit_status == 1
        engine.close()
    for made in (*pollers, *others):
        made.close()


def test_who_does_not_come_up_is_named():
    layout = Layout(SMALL, 1, 2)
    with closing(create_bus(layout)) as files:
        engine = VerbsCollective(files, 1, layout)
        with pytest.raises(PollerError, match=r"poller of rank 1 did not come up within 0.05 s"):
            engine.join(0.05)
        engine.close()


def test_paces_share_a_port_among_all_who_send_to_it():
    # 200 Gb/s for three peers on two lanes: 28.3 Gb/s, 3.54 bytes a nanosecond.
    assert picoseconds(share(200.0, Layout(SMALL, 2, 4))) == round(8e3 / 28.333333)
    assert picoseconds(share(0.0, Layout(SMALL, 1, 2))) == 0


@pytest.mark.parametrize(
    ("told", "pace_ps", "out"), [({}, 0, 4), ({"pace_gbps": 4.0, "bulk_out": 1}, 2000, 1)]
)
def test_paces_and_how_many_are_out_follow_what_is_told(told, pace_ps, out):
    """A fake port does not tell its rate."""
    with world_of(2, kind=World, geometry=Geometry(4, 64, 4, 256), **told) as world:
        records = world.pollers[0].carrier._records
        assert set(records[:, loop.PACE_PS]) == {0, pace_ps}
        assert set(records[:, loop.MOST_OUT]) == {0, out}
