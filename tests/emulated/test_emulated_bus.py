"""Sums over the bus from devices: kernels and pollers over one fake network."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from emulator.cupy_host import Stream, zeros
from emulator.kernels import EmulatedKernels, compiler
from faulty import EMULATED
from sum_oracles import in_rank_order

from dgpp.check.expected import Expected, stated_tolerances
from dgpp.check.forward import CheckOptions, check_checkpoint
from dgpp.checkpoint.checkpoint import Checkpoint
from dgpp.net.collective import Wire
from dgpp.net.tags import Kind, tag
from dgpp.net.verbs.devices import open_devices
from dgpp.net.verbs.errors import BusError
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.slots import device_records
from kernels_numba.cpu import bus
from kernels_numba.gpu.bus import BusChannels, BusRanks
from kernels_numba.gpu.errors import CudaError

sys.path.append(str(Path(__file__).parents[1] / "unit" / "net" / "verbs"))
from fake_verbs import Faults
from fake_world import World, world_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")

GEOMETRY = Geometry(4, 64, 2, 256, device_slots=4, device_slot_bytes=1024)
WIDTH, CAPACITY = 96, 70
FAULTS = [Faults(), Faults(lost=9, doubled=5, early=2, delayed=2)]


class Devices(World):
    """Each rank a device; pollers take turns in a thread."""

    def __init__(self, world: int, lanes: int, faults: Faults, tags=None) -> None:
        super().__init__(world, lanes, GEOMETRY, faults)
        self.sums = []
        for rank, poller in enumerate(self.pollers):
            records, tag_of = device_records(poller.slab), (tags or [tagged] * world)[rank]
            channels = BusChannels(EmulatedKernels(1 + rank), rank, records, tag_of)
            self.sums.append(BusRanks(channels, CAPACITY, WIDTH))
            self.sums[rank].limit(60.0)
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


@pytest.fixture(
    scope="module",
    params=[(2, 1, 0), (2, 2, 1), (3, 2, 1)],
    ids=["2 ranks", "2 ranks, 2 lanes, faulty", "3 ranks, 2 lanes, faulty"],
)
def devices(request):
    world, lanes, faults = request.param
    made = Devices(world, lanes, FAULTS[faults])
    yield made
    made.close()


def tensor(values: np.ndarray) -> SimpleNamespace:
    array = zeros(values.shape, np.float32)
    array[...] = values
    return SimpleNamespace(array=array, pointer=int(array.data.ptr), stride=values.shape[1], wide=1)


def tagged(gather: bool, size: int) -> int:
    return tag(Kind.ALL_GATHER if gather else Kind.ALL_REDUCE, Wire.F32, size)


def parts_of(devices: Devices, count: int) -> np.ndarray:
    shape = (len(devices.sums), count, WIDTH)
    return np.random.default_rng(count).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("count", [1, 21, CAPACITY])
def test_sums_have_the_bits_of_additions_in_rank_order(devices, count, add) -> None:
    """Of one message, of several, and of more than slots hold."""
    parts = parts_of(devices, count)

    def go(rank, memory):
        memory.partial.array[:count, :WIDTH] = parts[rank]
        out = tensor(np.full((count, WIDTH), 0.5, np.float32))
        memory.all_reduce(count, out, add=add)
        return np.array(out.array)

    wanted = in_rank_order(list(parts), Wire.F32)
    for result in devices.run(go):
        np.testing.assert_array_equal(result, wanted + np.float32(0.5) if add else wanted)


@pytest.mark.parametrize("words", [1, 1100])
def test_words_of_all_are_gathered_and_what_was_done_is_told(devices, words) -> None:
    world = len(devices.sums)
    sent = np.random.default_rng(words).integers(0, 2**63, (world, words), np.uint64)

    def go(rank, memory):
        source, out = zeros(words, np.uint64), zeros(world * words, np.uint64)
        source[...] = sent[rank]
        before = memory.tally()
        for _ in range(2):
            memory.gather(int(source.data.ptr), words, int(out.data.ptr))
        return np.array(out), before, memory.tally()

    for out, before, after in devices.run(go):
        np.testing.assert_array_equal(out.reshape(world, words), sent)
        assert after.gathers > before.gathers
        assert after.bytes > before.bytes


def test_a_recorded_step_counts_on_round_the_ring(devices) -> None:
    parts = parts_of(devices, 30)
    once, wanted = in_rank_order(list(parts), Wire.F32), np.zeros((30, WIDTH), np.float32)
    for _ in range(6):
        wanted = (wanted + once).astype(np.float32)

    def go(rank, memory):
        memory.partial.array[:30, :WIDTH] = parts[rank]
        out, stream = tensor(np.zeros((30, WIDTH))), Stream()
        stream.begin_capture()
        for _ in range(2):
            memory.all_reduce(30, out, add=True)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        return np.array(out.array)

    for result in devices.run(go):
        np.testing.assert_array_equal(result, wanted)


class Backend:
    """What sums need of one."""

    def __init__(self, rank: int) -> None:
        self._kernels = EmulatedKernels(1 + rank)

    def open_ranks(self, make):
        return make(self._kernels, SimpleNamespace(index=0), CAPACITY)


@pytest.fixture
def ends():
    """Two ranks as they serve, the host's part met: (collectives, world)."""
    with world_of(2, 2, GEOMETRY) as world:
        made = [open_devices(rank) for rank in world.ranks]
        world.run(lambda rank: made[rank.rank].partial(Backend(rank.rank), WIDTH))
        for end in made:
            end.serve()
        yield made, world
        for end in made:
            end.close()


def test_sums_of_devices_and_the_hosts_gathers_take_turns(ends) -> None:
    made, world = ends
    parts = np.random.default_rng(1).standard_normal((2, 30, WIDTH)).astype(np.float32)

    def go(host):
        end, backend = made[host.rank], Backend(host.rank)
        out, sums = tensor(np.zeros((30, WIDTH), np.float32)), []
        for count in (30, 1):
            partial = end.partial(backend, WIDTH)
            partial.array[:30, :WIDTH] = parts[host.rank]
            end.all_reduce(count, partial, out, add=False)
            sums.append(np.array(out.array))
            gathered = end.all_gather(np.array([10 * host.rank + count]))
            end.barrier()
        end.check()
        return (*sums, gathered)

    wanted = in_rank_order(list(parts), Wire.F32)
    for first, second, gathered in world.run(go):
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(second, wanted)
        np.testing.assert_array_equal(gathered[:, 0], [1, 11])
    assert {(end.name, end.statistics().path) for end in made} == {("verbs", "verbs")}


def test_another_width_goes_on_over_the_same_channels(ends) -> None:
    made, world = ends

    def go(host):
        end, found = made[host.rank], []
        for width in (WIDTH, 2 * WIDTH, WIDTH):
            partial = end.partial(Backend(host.rank), width)
            partial.array[:1, :width] = 1 + host.rank
            out = tensor(np.zeros((1, width), np.float32))
            end.all_reduce(1, partial, out, add=False)
            found.append(np.array(out.array))
        return found

    for found in world.run(go):
        assert [(set(out[0]), out.size) for out in found] == [
            ({3.0}, width) for width in (WIDTH, 2 * WIDTH, WIDTH)
        ]


def test_a_poller_that_breaks_lets_the_kernels_go(ends) -> None:
    made, world = ends
    partial = made[0].partial(Backend(0), WIDTH)
    out = tensor(np.zeros((1, WIDTH), np.float32))
    waiting = world.pool.submit(made[0].all_reduce, 1, partial, out, add=False)
    time.sleep(0.05)
    assert not waiting.done()
    world.pollers[0].broke(1, BusError("roce bus: rank 1, lane 0: retries are used up"))
    waiting.result(30)
    with pytest.raises(BusError, match="rank 1, lane 0: retries are used up"):
        made[0].check()


@pytest.mark.long
@pytest.mark.skipif(not EMULATED, reason="needs DGPP_TEST_EMULATED=1")
def test_a_model_s_ranks_sum_over_the_bus(monkeypatch) -> None:
    """Prompts, decode steps and the merge of candidates."""
    geometry = Geometry(4, 8192, 4, 65536, device_slots=4, device_slot_bytes=4096)
    folder = Path(__file__).parents[1] / "fixtures" / "glm-4.7-bf16"
    expected, done = Expected(folder / "expected.npz"), []
    with world_of(2, 2, geometry) as world:

        def opened(wanted, backend, device, fd, rank, *_):
            done.append(open_devices(world.ranks[rank]))
            return done[-1]

        monkeypatch.setattr("dgpp.check.world.open_collective", opened)
        copies = itertools.count(1)
        monkeypatch.setattr(
            "kernels_numba.gpu.backend.Kernels", lambda: EmulatedKernels(next(copies))
        )
        options = CheckOptions(backend="cuda", world=2, rule="bf16")
        report = check_checkpoint(
            Checkpoint(folder), expected, stated_tolerances(folder / "expected.npz"), options
        )
    assert report.failures == ()
    assert {one.statistics().path for one in done} == {"verbs"}
    assert min(one.statistics().all_reduces for one in done) > 100


def test_what_the_bus_cannot_sum_is_named(devices) -> None:
    with pytest.raises(CudaError, match="rows of 5 values: sums over the bus take whole pairs"):
        BusRanks(devices.sums[0]._channels, 1, 5)
    with pytest.raises(ValueError, match="sums over ranks go to float32 rows"):
        devices.sums[0].all_reduce(1, SimpleNamespace(wide=0), add=False)


def test_another_collective_is_told() -> None:
    others = [tagged, lambda gather, size: tagged(not gather, size)]
    with closing(Devices(2, 1, FAULTS[0], others)) as devices:

        def go(rank, memory):
            memory.all_reduce(1, tensor(np.ones((1, WIDTH), np.float32)), add=False)
            return memory.failed(), memory.other()

        told = devices.run(go)
        assert told == [(1, (1, tagged(True, 4 * WIDTH))), (0, (1, tagged(False, 4 * WIDTH)))]


@pytest.mark.parametrize("count", [1, CAPACITY])
def test_a_missing_rank_lets_go(count) -> None:
    with closing(Devices(2, 1, FAULTS[0])) as alone:
        out, memory = tensor(np.ones((count, WIDTH), np.float32)), alone.sums[0]
        waiting = alone.pool.submit(memory.all_reduce, count, out, add=False)
        time.sleep(0.05)
        assert not waiting.done()
        memory.abort()
        waiting.result(30)
        assert memory.failed() == 1


def test_a_rank_that_gave_up_sends_nothing_more() -> None:
    """What it sent before is right; what it would send from then on is of sums that were not."""
    with closing(Devices(2, 1, FAULTS[0])) as devices:
        first, second = devices.sums
        out = tensor(np.ones((1, WIDTH), np.float32))
        first.partial.array[:1, :WIDTH] = 3
        waiting = devices.pool.submit(first.all_reduce, 1, out, add=False)
        time.sleep(0.05)
        first.abort()
        waiting.result(30)
        assert first.failed() == 1
        first.all_reduce(1, out, add=False)
        second.partial.array[:1, :WIDTH] = 4
        second.all_reduce(1, out, add=False)
        assert (second.failed(), set(out.array[0])) == (-1, {7.0})
        second.limit(0.1)
        second.all_reduce(1, out, add=False)
        assert second.failed() == 0


def test_a_message_that_never_gets_whole_is_told_when_the_wait_is_called_off() -> None:
    with closing(Devices(2, 1, FAULTS[0])) as devices:
        record = device_records(devices.pollers[1].slab)[0, 0]
        words, memory = np.ones(WIDTH // 2, np.int64), devices.sums[0]
        bus.send(
            int(record.ctypes.data), int(words.ctypes.data), words.nbytes, 5, 1,
            tagged(False, words.nbytes),
        )  # fmt: skip
        out = tensor(np.ones((1, WIDTH), np.float32))
        waiting = devices.pool.submit(memory.all_reduce, 1, out, add=False)
        time.sleep(0.05)
        assert not waiting.done()
        memory.abort()
        waiting.result(30)
        assert (memory.failed(), memory.other()) == (1, (0, 0))
