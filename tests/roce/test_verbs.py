"""The verbs library over real devices: connected ends, every size, what failures are called."""

from __future__ import annotations

import multiprocessing
import select
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from ends import close_end, either, open_end
from verbs_end import Done, Told

from dgpp.net.roce import chosen
from dgpp.net.verbs.errors import DeviceError, PeerUnreachableError
from dgpp.net.verbs.library import Status, failure
from dgpp.net.verbs.packages import load

MOST = 8 << 20
SIZES = [1, 63, 64, 1023, 1024, 1025, 4097, 8192, 65536, 262144, (1 << 20) + 3, MOST]


@contextmanager
def connected(devices, gid_index, **options):
    pair = [open_end(name, gid_index, **options) for name in devices]
    for end, other in (pair, pair[::-1]):
        end.connect(other.told())
    yield pair
    for end in pair:
        close_end(end)


@pytest.fixture
def ends(devices, gid_index, package):
    with connected(devices, gid_index, package=package) as pair:
        yield pair


def test_writes_that_are_told_cross_both_ways(ends):
    for end, other in (ends, ends[::-1]):
        assert other.receive(9) == 0
        end.mine[:100] = np.arange(100)
        assert end.write(100, number=4, told=True) == 0
        assert (other.wait(), end.wait()) == (Done(9, received=True), Done(4))
        assert np.array_equal(other.theirs[:100], np.arange(100))


@either
def test_every_size_arrives_whole(devices, gid_index, package):
    noise = np.random.default_rng(1).integers(0, 256, MOST, np.uint8)
    with connected(devices, gid_index, package=package, half=MOST) as (end, other):
        for place, size in enumerate(SIZES):
            end.mine[:size] = noise[:size] ^ np.uint8(place)
            other.theirs[size : size + 8] = place
            other.receive(place)
            end.write(size, number=100, signaled=False)
            end.write(size, number=place, told=True)
            assert other.wait() == Done(place, received=True)
            # The write before, unsignaled, has none.
            assert end.wait() == Done(place)
            assert np.array_equal(other.theirs[:size], end.mine[:size])
            assert size == MOST or (other.theirs[size : size + 8] == place).all()
        assert end.poll() == other.poll() == []


def test_a_wrong_key_is_told_and_nothing_is_written(ends):
    end, other = ends
    other.theirs[:64] = 7
    end.write(64, number=5, rkey=end.peer.rkey ^ 0x5A00)
    assert end.wait() == Done(5, Status.REMOTE_ACCESS)
    assert (other.theirs[:64] == 7).all()
    end.write(64, number=6)
    assert end.wait() == Done(6, Status.FLUSHED)


def test_memory_that_is_not_registered_is_told(ends):
    end, _other = ends
    end.start += 2 * end.half
    end.write(64, number=1)
    assert end.wait() == Done(1, Status.LOCAL_ACCESS)


def test_a_completion_wakes_whoever_asked(ends):
    end, other = ends
    other.receive(3)
    other.completions.arm()
    assert select.select([other.completions.fd], [], [], 0)[0] == []
    end.write(64, told=True)
    assert select.select([other.completions.fd], [], [], 60)[0]
    other.completions.quiet()
    assert other.wait() == Done(3, received=True)


def test_what_cannot_be_had_is_named(devices, gid_index, package):
    library = load([package])
    device = chosen(devices[:1], [gid_index])[0]
    with pytest.raises(DeviceError, match="cannot open rxe9"):
        library.open(msgspec.structs.replace(device, name="rxe9"), gid_index)
    port = library.open(device, gid_index)
    with pytest.raises(DeviceError, match="no completion queue of"):
        port.completion_queue(1 << 30)
    with pytest.raises(DeviceError, match=r"cannot register 4096 bytes"):
        port.register(1 << 20, 4096)
    port.close()


def live(device, gid_index, package, pipe):
    """The peer that is killed: says where it is reached, and receives one write."""
    end = open_end(device, gid_index, package)
    end.receive(1)
    pipe.send_bytes(msgspec.json.encode(end.told()))
    end.connect(msgspec.json.decode(pipe.recv_bytes(), type=Told))
    pipe.send_bytes(b"connected")
    assert end.wait().received
    pipe.send_bytes(b"received")
    pipe.recv_bytes()


@either
def test_a_killed_peer_is_named(devices, gid_index, package):
    # Forked, so that an emulated processor imports nothing anew.
    fork = multiprocessing.get_context("fork")
    pipe, theirs = fork.Pipe()
    peer = fork.Process(target=live, args=(devices[1], gid_index, package, theirs), daemon=True)
    peer.start()
    end = open_end(devices[0], gid_index, package)
    end.connect(msgspec.json.decode(pipe.recv_bytes(), type=Told))
    pipe.send_bytes(msgspec.json.encode(end.told()))
    assert pipe.recv_bytes() == b"connected"
    end.write(64, number=1, told=True)
    assert end.wait() == Done(1)
    assert pipe.recv_bytes() == b"received"
    peer.kill()
    peer.join()
    end.write(64, number=2)
    done = end.wait()
    with pytest.raises(PeerUnreachableError, match="rank 1, lane 1: no answer"):
        raise failure(done.status, 0, "rank 1, lane 1")
    close_end(end)
