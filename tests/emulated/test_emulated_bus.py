"""Sums over the bus from devices: kernels and pollers over one fake network."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from emulator.cupy_host import Stream, zeros
from emulator.kernels import EmulatedKernels, compiler
from sum_oracles import in_rank_order

from dgpp.net.collective import Wire
from dgpp.net.tags import Kind, tag
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.slots import Ends
from kernels_numba.gpu.bus import BusSums
from kernels_numba.gpu.errors import CudaError

sys.path.append(str(Path(__file__).parents[1] / "unit" / "net" / "verbs"))
from fake_verbs import Faults
from fake_world import World

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")

GEOMETRY = Geometry(4, 8192, 2, 256)
WIDTH = 96
FAULTS = [Faults(), Faults(lost=9, doubled=5, early=2, delayed=2)]


class Devices(World):
    """Each rank a device; pollers take turns in a thread."""

    def __init__(self, world: int, faults: Faults) -> None:
        super().__init__(world, 1, GEOMETRY, faults)
        self.sums = []
        for rank, poller in enumerate(self.pollers):
            records = Ends(poller.slab).latency_records()
            self.sums.append(BusSums(EmulatedKernels(1 + rank), rank, records))
        self.pool = ThreadPoolExecutor(world + 1)
        self.stopped = threading.Event()
        self.carrying = self.pool.submit(self._carry)

    def _carry(self) -> None:
        while not self.stopped.is_set():
            worked = [self.turn(rank) for rank in range(len(self.sums))]
            if not any(worked):
                time.sleep(0.0001)

    def run(self, function):
        jobs = [self.pool.submit(function, *item) for item in enumerate(self.sums)]
        return [job.result(60) for job in jobs]

    def close(self) -> None:
        self.stopped.set()
        self.carrying.result(30)
        self.pool.shutdown()
        super().close()


@pytest.fixture(scope="module", params=[(2, 0), (2, 1), (3, 1)], ids=["2", "2 faulty", "3 faulty"])
def devices(request):
    made = Devices(request.param[0], FAULTS[request.param[1]])
    yield made
    made.close()


def tensor(values: np.ndarray) -> SimpleNamespace:
    array = zeros(values.shape, np.float32)
    array[...] = values
    return SimpleNamespace(array=array, pointer=int(array.data.ptr), stride=values.shape[1])


def tag_of(count: int, kind: Kind = Kind.ALL_REDUCE) -> int:
    return tag(kind, Wire.F32, 4 * count * WIDTH)


def parts_of(devices: Devices, count: int) -> np.ndarray:
    shape = (len(devices.sums), count, WIDTH)
    return np.random.default_rng(count).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("count", [1, 3, 21])
def test_sums_have_the_bits_of_additions_in_rank_order(devices, count, add) -> None:
    parts = parts_of(devices, count)

    def go(rank, memory):
        out = tensor(np.full((count, WIDTH), 0.5, np.float32))
        memory.all_reduce(count, tensor(parts[rank]), out, WIDTH, tag_of(count), add=add)
        return np.array(out.array)

    wanted = in_rank_order(list(parts), Wire.F32)
    for result in devices.run(go):
        np.testing.assert_array_equal(result, wanted + np.float32(0.5) if add else wanted)


def test_a_recorded_step_counts_on_round_the_ring(devices) -> None:
    parts = parts_of(devices, 5)
    once, wanted = in_rank_order(list(parts), Wire.F32), np.zeros((5, WIDTH), np.float32)
    for _ in range(6):
        wanted = (wanted + once).astype(np.float32)

    def go(rank, memory):
        part, out, stream = tensor(parts[rank]), tensor(np.zeros((5, WIDTH))), Stream()
        stream.begin_capture()
        for _ in range(2):
            memory.all_reduce(5, part, out, WIDTH, tag_of(5), add=True)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        return np.array(out.array)

    for result in devices.run(go):
        np.testing.assert_array_equal(result, wanted)


def test_rows_that_no_message_holds_are_refused(devices) -> None:
    part = tensor(np.zeros((22, WIDTH), np.float32))
    with pytest.raises(CudaError, match="22 rows of 96 values: one message takes up to 8192"):
        devices.sums[0].all_reduce(22, part, part, WIDTH, tag_of(22), add=False)


def test_another_collective_is_told_and_a_missing_rank_lets_go() -> None:
    devices = Devices(2, FAULTS[0])

    def go(rank, memory):
        part, kind = tensor(np.ones((1, WIDTH), np.float32)), Kind(1 + rank)
        memory.all_reduce(1, part, part, WIDTH, tag_of(1, kind), add=False)
        return memory.failed(), memory.other()

    told = devices.run(go)
    assert told == [(1, (1, tag_of(1, Kind.ALL_GATHER))), (0, (1, tag_of(1)))]
    devices.close()
    alone = Devices(2, FAULTS[0])
    part, memory = tensor(np.ones((1, WIDTH), np.float32)), alone.sums[0]
    waiting = alone.pool.submit(memory.all_reduce, 1, part, part, WIDTH, tag_of(1), add=False)
    time.sleep(0.05)
    assert not waiting.done()
    memory.abort()
    waiting.result(30)
    assert memory.failed() == 1
    alone.close()
