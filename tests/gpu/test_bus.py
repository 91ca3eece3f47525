"""Sums over the bus from a real device: two ranks on one GPU, their pollers over a fake network."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("msgspec")
sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "net" / "verbs"))
from fake_verbs import Faults
from fake_world import PolledWorld, world_of
from sum_oracles import in_rank_order

from dgpp.net.collective import Wire
from dgpp.net.tags import Kind, tag
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.slots import device_records

WIDTH, CAPACITY = 2048, 2048
GEOMETRY = Geometry(4, 64, 2, 256, device_slots=8, device_slot_bytes=65536)
HARD = Faults(lost=9, doubled=5, early=2, delayed=2)
SUMS = 90
"""In a recorded graph, as many as a step of a large model has."""


class Pollers(PolledWorld):
    """The kernels use the channels, and nobody else."""

    joins = False


def tagged(gather, size):
    return tag(Kind.ALL_GATHER if gather else Kind.ALL_REDUCE, Wire.F32, size)


class Rank:
    """One rank's kernels, on a stream of its own."""

    def __init__(self, poller) -> None:
        import cupy

        from kernels_numba.gpu.bus import BusChannels, BusRanks, register_slab
        from kernels_numba.gpu.kernels import Kernels

        self.poller = poller
        register_slab(poller.slab.address, poller.layout.bytes)
        self.stream = cupy.cuda.Stream(non_blocking=True)
        with self.stream:
            records = device_records(poller.slab)
            channels = BusChannels(Kernels(), poller.rank, records, tagged)
            self.sums = BusRanks(channels, CAPACITY, WIDTH)
        self.sums.limit(60.0)

    def tensor(self, values):
        import cupy

        with self.stream:
            array = cupy.asarray(values)
        self.stream.synchronize()
        return SimpleNamespace(
            array=array, pointer=int(array.data.ptr), stride=values.shape[1], wide=1
        )

    def part(self, values) -> None:
        with self.stream:
            self.sums.partial.array[: len(values)].set(values)
        self.stream.synchronize()

    def reduce(self, out, count, *, add) -> None:
        with self.stream:
            self.sums.all_reduce(count, out, add=add)

    def check(self) -> None:
        """No kernel gave up, and if one did: whether its poller did so first, and why."""
        assert (self.sums.failed(), self.poller.slab.failure[1]) == (-1, "")


@pytest.fixture(params=[Faults(), HARD], ids=["good", "bad"])
def ranks(cuda, request):
    with world_of(2, 2, kind=Pollers, geometry=GEOMETRY, faults=request.param, nap_s=1e9) as world:
        made = [Rank(poller) for poller in world.pollers]
        yield made
        import cupy

        for rank in made:
            rank.stream.synchronize()
        for poller in world.pollers:
            cupy.cuda.runtime.hostUnregister(poller.slab.address)


@pytest.mark.parametrize("count", [1, 3, 8, 100, CAPACITY])
def test_sums_have_the_bits_of_additions_in_rank_order(ranks, count) -> None:
    parts = np.random.default_rng(count).standard_normal((2, count, WIDTH)).astype(np.float32)
    for rank, part in zip(ranks, parts, strict=True):
        rank.part(part)
    outs = [rank.tensor(np.full((count, WIDTH), 0.5, np.float32)) for rank in ranks]
    for rank, out in zip(ranks, outs, strict=True):
        rank.reduce(out, count, add=True)
    wanted = in_rank_order(list(parts), Wire.F32) + np.float32(0.5)
    for rank, out in zip(ranks, outs, strict=True):
        rank.stream.synchronize()
        rank.check()
        np.testing.assert_array_equal(out.array.get(), wanted)


def test_recorded_sums_count_on(ranks, capsys) -> None:
    parts = np.random.default_rng(7).standard_normal((2, 1, WIDTH)).astype(np.float32)
    graphs, outs = [], []
    for rank, part in zip(ranks, parts, strict=True):
        rank.part(part)
        out = rank.tensor(np.zeros((1, WIDTH), np.float32))
        with rank.stream:
            rank.stream.begin_capture()
            for _ in range(SUMS):
                rank.reduce(out, 1, add=False)
            graphs.append(rank.stream.end_capture())
        outs.append(out)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        for rank, graph in zip(ranks, graphs, strict=True):
            graph.launch(rank.stream)
        for rank in ranks:
            rank.stream.synchronize()
        times.append(time.perf_counter() - began)
    for rank, out in zip(ranks, outs, strict=True):
        rank.check()
        np.testing.assert_array_equal(out.array.get(), in_rank_order(list(parts), Wire.F32))
    with capsys.disabled():
        print(f"\na recorded sum of 8 KiB over a fake network: {min(times) / SUMS * 1e6:.1f} us")
