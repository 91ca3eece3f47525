"""Sums over devices and the merge of candidates, each device a thread that runs the kernels."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from emulator.cupy_host import Stream, zeros
from emulator.kernels import EmulatedKernels, compiler

from kernels_numba.gpu.ranks import SMALL_ROWS, CandidateMerge, RankMemory

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs g++ or clang++")

WIDTH, CAPACITY = 96, SMALL_ROWS + 9
COUNTS = (1, 5, SMALL_ROWS, SMALL_ROWS + 1, CAPACITY)


class World:
    """Connected memories, and a thread for each."""

    def __init__(self, world: int) -> None:
        self.ranks = [
            RankMemory(EmulatedKernels(1 + rank), 0, rank, world, CAPACITY, WIDTH)
            for rank in range(world)
        ]
        tickets = [rank.ticket() for rank in self.ranks]
        for rank in self.ranks:
            rank.connect(tickets)
            rank.limit(60.0)
            # Emulated ranks are threads that share device 0.
            assert rank._kernels.shares
        self._pool = ThreadPoolExecutor(world)
        self.barrier = threading.Barrier(world)

    def run(self, function):
        """`function(rank number, memory)` on every rank at once; results in rank order."""
        jobs = [self._pool.submit(function, *item) for item in enumerate(self.ranks)]
        return [job.result(60) for job in jobs]


@pytest.fixture(scope="module", params=[2, 3])
def world(request):
    return World(request.param)


def tensor(values: np.ndarray) -> SimpleNamespace:
    array = zeros(values.shape, np.float32)
    array[...] = values
    return SimpleNamespace(array=array, pointer=int(array.data.ptr), stride=values.shape[1], wide=1)


def parts_of(world: World, count: int, seed: int) -> np.ndarray:
    shape = (len(world.ranks), count, WIDTH)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_order(parts: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
    total = parts[0]
    for part in parts[1:]:
        total = (total + part).astype(np.float32)
    return total if before is None else (before + total).astype(np.float32)


def summed(world: World, parts: np.ndarray, add: bool) -> list[np.ndarray]:
    before = np.full(parts.shape[1:], 0.5, np.float32)

    def go(rank, memory):
        memory.partial.array[: parts.shape[1], :WIDTH] = parts[rank]
        out = tensor(before)
        memory.all_reduce(parts.shape[1], out, add=add)
        return np.array(out.array)

    return world.run(go)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_sums_have_the_bits_of_additions_in_rank_order(world, count, add) -> None:
    parts = parts_of(world, count, count)
    before = np.full((count, WIDTH), 0.5, np.float32) if add else None
    for result in summed(world, parts, add):
        np.testing.assert_array_equal(result, in_order(parts, before))


def test_sums_of_all_kinds_in_turn_and_past_thirty_two_bits(world) -> None:
    for memory in world.ranks:
        memory._counters[::2] += np.uint64(2**32 - 4)
    for turn, count in enumerate([3, 3, CAPACITY, 3, CAPACITY, CAPACITY, 3, 3, 70, 2]):
        parts = parts_of(world, count, 100 + turn)
        for result in summed(world, parts, add=False):
            np.testing.assert_array_equal(result, in_order(parts))
    assert all(int(memory._counters[0]) > 2**32 for memory in world.ranks)


def test_a_recorded_step_counts_on(world) -> None:
    parts = parts_of(world, 70, 7)
    once, small = in_order(parts), in_order(parts[:, :4])
    wanted = np.zeros((70, WIDTH), np.float32)
    for _ in range(3):
        wanted[:4] = (wanted[:4] + small).astype(np.float32)
        wanted = (wanted + once).astype(np.float32)

    def go(rank, memory):
        memory.partial.array[:70, :WIDTH] = parts[rank]
        out, stream = tensor(np.zeros((70, WIDTH))), Stream()
        stream.begin_capture()
        memory.all_reduce(4, out, add=True)
        memory.all_reduce(70, out, add=True)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        return np.array(out.array)

    for result in world.run(go):
        np.testing.assert_array_equal(result, wanted)


def test_what_was_done_is_counted_where_it_is_done() -> None:
    """By each rank for itself, replays too; the host is told with every gather."""
    world = World(2)

    def go(rank, memory):
        out, stream, words = tensor(np.zeros((70, WIDTH))), Stream(), zeros(6, np.uint64)
        gathered = zeros(12, np.uint64)
        stream.begin_capture()
        memory.all_reduce(4, out, add=True)
        memory.all_reduce(70, out, add=True)
        graph = stream.end_capture()
        assert memory.tally() == (0, 0, 0, 0, 0)
        for _ in range(3):
            graph.launch(stream)
        if rank == 1:
            time.sleep(0.2)
        for _ in range(2):
            memory.gather(int(words.data.ptr), 6, int(gathered.data.ptr))
        return memory.tally()

    early, late = world.run(go)
    for told in (early, late):
        assert (told.sums, told.gathers, told.bytes) == (6, 1, 4 * WIDTH * 3 * 74 + 8 * 6)
    assert early.waited_ns > 150e6
    assert early.waits >= 1


def candidates(logits: np.ndarray, wanted: int) -> tuple[np.ndarray, ...]:
    """lse, values, ids, held, present of each row, in canonical order."""
    rows = len(logits)
    values, ids = np.full((rows, wanted), -np.inf, np.float32), np.full((rows, wanted), -1)
    held, lse = np.zeros(rows, np.int32), np.full(rows, -np.inf)
    present = (logits > -np.inf).sum(axis=1)
    for r, row in enumerate(logits):
        found = np.flatnonzero(row > -np.inf)
        order = found[np.lexsort((found, -row[found]))][:wanted]
        held[r] = len(order)
        values[r, : len(order)], ids[r, : len(order)] = row[order], order
        if len(found):
            top = row.max().astype(np.float64)
            lse[r] = top + np.log(np.exp(row[found].astype(np.float64) - top).sum())
    return lse, values, ids.astype(np.int32), held, present.astype(np.int32)


@pytest.mark.parametrize(("levels", "absent"), [(2, 0.0), (10**6, 0.0), (30, 0.97)])
def test_candidates_of_slices_become_those_of_the_whole(world, levels, absent) -> None:
    rows, wanted, ranks = 5, 11, len(world.ranks)
    rng = np.random.default_rng(levels)
    logits = (rng.integers(-levels, levels, (rows, 300)) / levels).astype(np.float32)
    logits[rng.random(logits.shape) < absent] = -np.inf
    logits[3] = -np.inf
    edges = [0, *sorted(rng.choice(np.arange(20, 280), ranks - 1, replace=False)), 300]
    whole = candidates(logits, wanted)
    sizes = (8 * rows, 4 * rows * wanted, 4 * rows * wanted, 4 * rows, 4 * rows)
    places = np.cumsum((0, *sizes))

    def go(rank, memory):
        own = candidates(logits[:, edges[rank] : edges[rank + 1]], wanted)
        packed = np.concatenate([np.ascontiguousarray(f).reshape(-1).view(np.uint8) for f in own])
        results = zeros(-(-packed.size // 8) * 8, np.uint8)
        results[: packed.size] = packed
        layout = (wanted, *(int(place) for place in places[1:5]))
        CandidateMerge(memory._kernels, memory, edges[:-1], results, layout).run(rows)
        return results

    found = world.run(go)
    for results in found:
        fields = [results[a:b] for a, b in pairwise(places)]
        kinds = (np.float64, np.float32, np.int32, np.int32, np.int32)
        lse, values, ids, held, present = (
            np.array(field).view(kind) for field, kind in zip(fields, kinds, strict=True)
        )
        np.testing.assert_array_equal(ids.reshape(rows, wanted), whole[2])
        np.testing.assert_array_equal(values.reshape(rows, wanted), whole[1])
        np.testing.assert_array_equal(held, whole[3])
        np.testing.assert_array_equal(present, whole[4])
        np.testing.assert_allclose(lse, whole[0], rtol=1e-12)
        np.testing.assert_array_equal(lse, np.array(found[0][: places[1]]).view(np.float64))


@pytest.mark.parametrize("count", [2, 70])
def test_a_wait_that_is_called_off_ends_and_says_for_whom(count) -> None:
    world = World(2)
    out = tensor(np.zeros((count, WIDTH)))
    waiting = threading.Thread(target=lambda: world.ranks[0].all_reduce(count, out, add=False))
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    assert world.ranks[0].failed() == -1
    world.ranks[0].abort()
    waiting.join(20)
    assert not waiting.is_alive()
    assert world.ranks[0].failed() == 1
    world.ranks[0].all_reduce(count, out, add=False)


@pytest.mark.parametrize("then", [3, CAPACITY])
@pytest.mark.parametrize("count", [3, CAPACITY])
def test_a_rank_that_gave_up_sends_nothing_more(count, then) -> None:
    """What it sent before is right; what it would send from then on is of sums that were not. A
    block that begins when another has given up sends nothing either."""
    first, second = World(2).ranks
    out = tensor(np.zeros((CAPACITY, WIDTH), np.float32))
    first.partial.array[:, :WIDTH], second.partial.array[:, :WIDTH] = 3, 4
    first.limit(0.1)
    first.all_reduce(count, out, add=False)
    first.all_reduce(then, out, add=False)
    assert first.failed() == 1
    second.limit(0.1)
    second.all_reduce(count, out, add=False)
    assert second.failed() == 0 or set(out.array[count - 1]) == {7.0}
    second.all_reduce(then, out, add=False)
    assert second.failed() == 0


def test_what_ranks_cannot_sum_is_named() -> None:
    with pytest.raises(Exception, match="rows of 6 values: sums over GPUs take whole fours"):
        RankMemory(EmulatedKernels(), 0, 0, 2, 1, 6)
    with pytest.raises(Exception, match="9 ranks: at most 8 GPUs"):
        RankMemory(EmulatedKernels(), 0, 0, 9, 1, 8)
    narrow = SimpleNamespace(wide=0)
    with pytest.raises(ValueError, match="sums over ranks go to float32 rows"):
        World(2).ranks[0].all_reduce(1, narrow, add=False)
