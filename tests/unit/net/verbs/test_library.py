"""What failures are called, what is said of a missing library, and the network that tests use."""

from __future__ import annotations

import random
import sys
import types

import numpy as np
import pytest
from fake_verbs import Fabric, Faults

from dgpp.net.verbs import by_pyverbs
from dgpp.net.verbs.errors import (
    BusError,
    LibraryError,
    PeerNotReadyError,
    PeerUnreachableError,
    PostError,
    QueueBrokenError,
    RemoteAccessError,
)
from dgpp.net.verbs.library import Completion, Event, Status, require_done


def connected(faults=Faults(), seed=1, depth=64):  # noqa: B008
    """Two ends: port, uint8 memory, region, completions and pair of each."""
    fabric = Fabric(random.Random(seed).randrange, faults)
    ends = []
    for name in ("a", "b"):
        port, memory = fabric.port(name), np.zeros(1 << 16, np.uint8)
        done = port.completion_queue(64)
        region = port.register(int(memory.ctypes.data), memory.size)
        ends.append((memory, region, done, port.queue_pair(done, depth)))
    ends[0][3].connect(ends[1][3].address, 4096)
    ends[1][3].connect(ends[0][3].address, 4096)
    return fabric, *ends


def write(end, other, length=64, wr_id=1, rkey=None, **options):
    _memory, region, _done, pair = end
    key = other[1].rkey if rkey is None else rkey
    pair.post_write(wr_id, region.address, length, region.lkey, other[1].address, key, **options)


@pytest.mark.parametrize("faults", [Faults(), Faults(lost=3, duplicated=3, early=3)])
def test_lost_and_doubled_pieces_are_mended(faults):
    fabric, a, b = connected(faults)
    a[0][:] = np.random.default_rng(3).integers(0, 256, a[0].size)
    b[3].post_receive(7, b[1].address, 0, b[1].lkey)
    write(a, b, 50_000, signaled=False)
    write(a, b, 60_000, wr_id=2, immediate=9)
    fabric.settle()
    assert a[2].poll(9) == [Completion(2, Event.SENT)]
    assert b[2].poll(9) == [Completion(7, Event.WRITTEN, Status.DONE, 9, 60_000)]
    assert np.array_equal(a[0][:60_000], b[0][:60_000])
    assert not b[0][60_000:].any()


def raised(end, kind, words):
    first, *rest = end[2].poll(9)
    with pytest.raises(kind, match=words):
        require_done(first, "rank 3, lane 1")
    return rest


def test_a_dead_peer_is_named_and_what_waits_behind_is_thrown_away():
    fabric, a, b = connected()
    fabric.kill("b")
    write(a, b)
    write(a, b, wr_id=2)
    fabric.settle()
    (second,) = raised(a, PeerUnreachableError, "rank 3, lane 1: no answer after all retries")
    with pytest.raises(QueueBrokenError, match="thrown away"):
        require_done(second, "rank 3, lane 1")
    write(a, b, wr_id=3)
    assert raised(a, QueueBrokenError, "the first failure") == []


def test_a_wrong_key_and_a_missing_receive_are_named():
    fabric, a, b = connected()
    write(a, b, rkey=99)
    fabric.settle()
    assert raised(a, RemoteAccessError, "restart all ranks together") == []
    fabric, a, b = connected()
    write(a, b, immediate=1)
    fabric.settle()
    assert raised(a, PeerNotReadyError, "its process hangs") == []


def test_a_full_queue_takes_no_more():
    _fabric, a, b = connected(depth=1)
    write(a, b)
    with pytest.raises(PostError):
        write(a, b)


def test_a_failure_without_a_name_tells_its_number():
    failed = Completion(1, Event.FAILED, Status.OTHER, detail="status 21, vendor 0x0")
    with pytest.raises(BusError, match=r"rank 1: failed \(status 21, vendor 0x0\): see the kernel"):
        require_done(failed, "rank 1")


def test_a_missing_library_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyverbs", None)
    with pytest.raises(LibraryError, match="python3-pyverbs"):
        by_pyverbs.load()


@pytest.mark.parametrize("flat", [True, False], ids=["release 44", "release 59"])
def test_constants_are_found_in_either_release(monkeypatch, flat):
    import enum

    values = {"IBV_WC_SUCCESS": 0, "IBV_WC_RETRY_EXC_ERR": 12}
    members = values if flat else {"ibv_wc_status": enum.IntEnum("ibv_wc_status", values)}
    name = "enums" if flat else "libibverbs_enums"
    module = types.ModuleType(f"pyverbs.{name}")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, "pyverbs", types.ModuleType("pyverbs"))
    for each in ("enums", "libibverbs_enums"):
        monkeypatch.setitem(sys.modules, f"pyverbs.{each}", module if each == name else None)
    found = by_pyverbs._numbers()
    assert {key: found[key] for key in values} == values
