"""Ranks on GPUs: two threads on two devices, or on one where there is no second.

Sums have the bits of float32 additions in rank order, eagerly and from a recorded graph.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

msgspec = pytest.importorskip("msgspec")

from dgpp.check.expected import stated_tolerances  # noqa: E402 - after the check that it can load
from dgpp.check.forward import CheckOptions, open_and_check  # noqa: E402
from dgpp.check.world import device_of, run_world  # noqa: E402
from dgpp.errors import DgppError  # noqa: E402
from dgpp.net.device import DeviceCollective  # noqa: E402
from dgpp.net.errors import PeerLateError, PeerLeftError  # noqa: E402
from dgpp.net.nccl import open_nccl  # noqa: E402
from dgpp.net.p2p import open_p2p  # noqa: E402
from dgpp.net.watch import Limits  # noqa: E402
from kernels_numba.picks import Adjustment  # noqa: E402

WIDTH, CAPACITY = 512, 200
COUNTS = (1, 3, 16, 64, 65, 200)


class Device:
    """What sums need of a backend, without its other kernels."""

    def __init__(self, index: int) -> None:
        import cupy

        from kernels_numba.gpu.kernels import Kernels

        cupy.cuda.Device(index).use()
        self.index = index
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self.kernels = Kernels()

    def open_ranks(self, make):
        return make(self.kernels, self, CAPACITY)

    def tensor(self, values: np.ndarray):
        from kernels_numba.gpu.memory import CudaTensor

        made = CudaTensor(*values.shape, wide=True)
        self.put(made, values)
        return made

    def put(self, tensor, values: np.ndarray) -> None:
        tensor.array[: values.shape[0], : values.shape[1]].set(values)
        self.stream.synchronize()

    def read(self, tensor, count: int) -> np.ndarray:
        # Not while a kernel waits: the copy would hold the lock that another rank's launch needs.
        self.stream.synchronize()
        return tensor.host(count)


@pytest.fixture
def rank_of(cuda):
    """run(world, function, path); function(one) with one.rank, collective, device, partial."""

    def run(world, function, path=open_p2p):
        def body(rank, host):
            device = Device(device_of(rank, "cuda"))
            collective = path(host)
            partial = collective.partial(device, WIDTH)
            collective._set_limits(Limits(silent_s=8.0, late_s=4.0))
            return function(
                SimpleNamespace(rank=rank, collective=collective, device=device, partial=partial)
            )

        return run_world(world, body, "cpu")

    return run


def parts_of(world: int, count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((world, count, WIDTH)).astype(np.float32)


def sums(one, count: int, *, add: bool, meet: bool = True) -> np.ndarray:
    device, parts = one.device, parts_of(one.collective.world, count)
    out = device.tensor(np.full((count, WIDTH), 0.25, np.float32))
    device.put(one.partial, parts[one.rank])
    # What has to be loaded or allocated has been, on every rank, before a kernel waits for another.
    if meet:
        one.collective.barrier()
    one.collective.all_reduce(count, one.partial, out, add=add)
    return device.read(out, count)


def wanted(world: int, count: int, *, add: bool) -> np.ndarray:
    total, *others = parts_of(world, count)
    for part in others:
        total = (total + part).astype(np.float32)
    return (np.float32(0.25) + total).astype(np.float32) if add else total


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_in_rank_order_on_every_rank(rank_of, world) -> None:
    def go(one):
        return [sums(one, count, add=add) for count in COUNTS for add in (False, True)]

    cases = [(count, add) for count in COUNTS for add in (False, True)]
    for results in rank_of(world, go):
        for (count, add), result in zip(cases, results, strict=True):
            np.testing.assert_array_equal(result, wanted(world, count, add=add))


def test_a_recorded_graph_counts_on(rank_of) -> None:
    """Small and large sums in turn, replayed and eager ones mixed."""

    def go(one):
        stream = one.device.stream
        out = one.device.tensor(np.zeros((100, WIDTH), np.float32))
        one.device.put(one.partial, parts_of(2, 100)[one.rank])

        def step():
            one.collective.all_reduce(5, one.partial, out, add=True)
            one.collective.all_reduce(100, one.partial, out, add=True)

        one.collective.barrier()
        step()
        stream.synchronize()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        graph.upload(stream)
        stream.synchronize()
        one.collective.barrier()
        for _ in range(200):
            graph.launch(stream)
        step()
        return one.device.read(out, 100)

    once = wanted(2, 100, add=False)
    total = np.zeros((100, WIDTH), np.float32)
    for _ in range(202):
        total[:5] = (total[:5] + once[:5]).astype(np.float32)
        total = (total + once).astype(np.float32)
    for result in rank_of(2, go):
        np.testing.assert_array_equal(result, total)


def test_the_number_of_a_collective_passes_thirty_two_bits(rank_of) -> None:
    def go(one):
        memory = one.collective._ranks
        memory._counters[::2] += np.uint64(2**32 - 3)
        one.device.stream.synchronize()
        one.collective.barrier()
        return [sums(one, count, add=False) for count in (5, 5, 100, 5, 5, 100, 5, 5)]

    for results in rank_of(2, go):
        for count, result in zip((5, 5, 100, 5, 5, 100, 5, 5), results, strict=True):
            np.testing.assert_array_equal(result, wanted(2, count, add=False))


@pytest.mark.parametrize("levels", [3, 10**6])
def test_candidates_of_slices_are_those_of_the_whole_row(cuda, levels) -> None:
    vocab, count, k = 1000, 3, 20
    rng = np.random.default_rng(levels)
    logits = (rng.integers(-levels, levels, (count, vocab)) / levels * 9).astype(np.float32)
    logits[0, rng.random(vocab) < 0.99] = -np.inf
    slices = [range(352), range(352, 704), range(704, 1000)]
    mask = rng.integers(0, 2**32, 32, np.uint32)

    def go(rank, host):
        from kernels_numba.gpu.backend import CudaBackend

        backend, collective = CudaBackend(CAPACITY, device_of(rank, "cuda")), open_p2p(host)
        collective.partial(backend, WIDTH)
        collective._set_limits(Limits(silent_s=8.0, late_s=4.0))
        held = slices[rank]
        picker = backend.picker(count, len(held), k)
        assert collective.merge(picker, slices)
        own = backend.logits(count, len(held))
        backend.write(own, logits[:, held.start : held.stop])
        words = mask[held.start // 32 : -(-held.stop // 32)]
        rows = [Adjustment(1.0), Adjustment(0.7), Adjustment(1.0, mask=words)]
        backend._stream.synchronize()
        collective.barrier()
        picker.launch(own, rows)
        found = picker.collect()
        # What did not come in time is zeros, and an error here.
        collective.check()
        return found

    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab].astype(bool)
    logits[2, ~bits] = -np.inf
    results = run_world(3, go)
    for found in results:
        assert found.present.tolist() == [vocab, vocab, bits.sum()]
        for row in range(count):
            present = np.flatnonzero(logits[row] > -np.inf)
            order = present[np.lexsort((present, -logits[row, present]))][:k]
            assert found.held[row] == len(order)
            assert found.ids[row, : len(order)].tolist() == order.tolist()
            assert (found.ids[row, len(order) :] == -1).all()
            np.testing.assert_array_equal(found.values[row, : len(order)], logits[row, order])
            scaled = logits[row, present].astype(np.float64) / (0.7 if row == 1 else 1.0)
            top = scaled.max()
            assert found.lse[row] == pytest.approx(top + np.log(np.exp(scaled - top).sum()), 1e-6)
        np.testing.assert_array_equal(found.lse, results[0].lse)


def test_a_rank_that_does_not_come_is_named_and_waiting_kernels_end(rank_of) -> None:
    def go(one):
        collective: DeviceCollective = one.collective
        collective._serving = Limits(silent_s=60.0, late_s=0.3)
        collective.serve()
        if one.rank == 1:
            time.sleep(1.5)
            return None
        began = time.monotonic()
        sums(one, 5, add=False, meet=False)
        with pytest.raises(
            PeerLateError, match="rank 1 lives and did not come to a sum on the dev"
        ):
            collective.check()
        return time.monotonic() - began

    waited = rank_of(2, go)[0]
    assert waited < 1.5


def test_a_rank_that_left_lets_the_others_go(rank_of) -> None:
    def go(one):
        one.collective.serve()
        if one.rank == 1:
            return None
        time.sleep(0.3)
        sums(one, 100, add=False, meet=False)
        with pytest.raises(PeerLeftError, match=r"rank 1 .* has left"):
            one.collective.check()
        return True

    assert rank_of(2, go)[0]


def test_sums_through_nccl(rank_of) -> None:
    from kernels_numba.gpu.device import device_count

    if device_count() < 2:
        pytest.skip("NCCL needs a GPU per rank")

    def go(one):
        return [sums(one, count, add=add) for count in COUNTS for add in (False, True)]

    cases = [(count, add) for count in COUNTS for add in (False, True)]
    for results in rank_of(2, go, open_nccl):
        for (count, add), result in zip(cases, results, strict=True):
            np.testing.assert_array_equal(result, wanted(2, count, add=add))


@pytest.mark.parametrize(("variant", "world"), [("bf16", 2), ("nvfp4", 2)])
def test_fixtures_in_a_world(cuda, monkeypatch, variant, world) -> None:
    monkeypatch.setitem(DeviceCollective.__init__.__kwdefaults__, "loading", Limits(10.0, 10.0))
    folder = Path(__file__).parents[1] / "fixtures" / f"glm-4.7-{variant}"
    tolerances = stated_tolerances(folder / "expected.npz")
    options = CheckOptions(backend="cuda", rule="bf16", world=world, threads=1)
    try:
        report = open_and_check(folder, folder / "expected.npz", tolerances, options)
    except DgppError as error:
        pytest.fail(str(error))
    assert report.failures == ()
