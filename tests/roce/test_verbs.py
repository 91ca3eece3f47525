"""The verbs library over real devices: connected ends, every size, what failures are called."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from ends import End, Told

from dgpp.net.roce import chosen
from dgpp.net.verbs.by_pyverbs import load
from dgpp.net.verbs.errors import (
    DeviceError,
    LocalAccessError,
    PeerUnreachableError,
    QueueBrokenError,
    RemoteAccessError,
)
from dgpp.net.verbs.library import Event, Status, require_done

MOST = 8 << 20
SIZES = [1, 63, 64, 1023, 1024, 1025, 4097, 8192, 65536, 262144, (1 << 20) + 3, MOST]


@contextmanager
def connected(devices, gid_index, **options):
    pair = [End(name, gid_index, **options) for name in devices]
    for end, other in (pair, pair[::-1]):
        end.connect(other.told())
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def ends(devices, gid_index):
    with connected(devices, gid_index) as pair:
        yield pair


def test_writes_with_immediates_cross_both_ways(ends):
    for (end, other), immediate in ((ends, 0x12345678), (ends[::-1], 0xFFFFFFFF)):
        other.receive(9)
        end.mine[:100] = np.arange(100)
        end.write(4, 100, immediate=immediate)
        arrived, sent = other.wait(), end.wait()
        assert (arrived.wr_id, arrived.event, arrived.status) == (9, Event.WRITTEN, Status.DONE)
        assert (arrived.immediate, arrived.length) == (immediate, 100)
        assert (sent.wr_id, sent.event, sent.status) == (4, Event.SENT, Status.DONE)
        assert np.array_equal(other.theirs[:100], np.arange(100))


def test_every_size_arrives_whole(devices, gid_index):
    noise = np.random.default_rng(1).integers(0, 256, MOST, np.uint8)
    with connected(devices, gid_index, half=MOST) as (end, other):
        for place, size in enumerate(SIZES):
            end.mine[:size] = noise[:size] ^ np.uint8(place)
            other.theirs[size : size + 8] = place
            other.receive(place)
            end.write(100, size, signaled=False)
            end.write(place, size, immediate=size)
            assert other.wait().immediate == size
            # The write before, unsignaled, has none.
            assert end.wait().wr_id == place
            assert np.array_equal(other.theirs[:size], end.mine[:size])
            assert size == MOST or (other.theirs[size : size + 8] == place).all()
        assert end.completions.poll(8) == other.completions.poll(8) == []


def test_sends_fill_receives_in_order(ends):
    end, other = ends
    for wr_id in range(3):
        other.receive(wr_id, 4096)
    for wr_id, length in enumerate((10, 4096, 1)):
        end.mine[:length] = wr_id + 1
        end.pair.post_send(wr_id, end.start, length, end.region.lkey)
        arrived = other.wait()
        assert (arrived.wr_id, arrived.event, arrived.length) == (wr_id, Event.RECEIVED, length)
        assert (other.theirs[:length] == wr_id + 1).all()
        assert end.wait().event is Event.SENT


def test_a_wrong_key_is_named_and_nothing_is_written(ends):
    end, other = ends
    other.theirs[:64] = 7
    end.write(5, 64, rkey=end.peer.rkey ^ 0x5A00)
    failed = end.wait()
    assert failed.wr_id == 5
    with pytest.raises(RemoteAccessError, match="rank 2, lane 0: the peer refused"):
        require_done(failed, "rank 2, lane 0")
    assert (other.theirs[:64] == 7).all()
    end.write(6, 64)
    with pytest.raises(QueueBrokenError):
        require_done(end.wait(), "rank 2, lane 0")


def test_memory_that_is_not_registered_is_named(ends):
    end, _other = ends
    end.pair.post_write(
        1, end.start + 2 * end.half - 32, 64, end.region.lkey, end.peer.start, end.peer.rkey
    )
    with pytest.raises(LocalAccessError):
        require_done(end.wait(), "rank 1, lane 0")


def test_what_cannot_be_had_is_named(devices, gid_index):
    library = load()
    device = chosen(devices[:1], [gid_index])[0]
    with pytest.raises(DeviceError, match="cannot open rxe9"):
        library.open(msgspec.structs.replace(device, name="rxe9"), gid_index)
    port = library.open(device, gid_index)
    with pytest.raises(DeviceError, match="no completion queue of"):
        port.completion_queue(1 << 30)
    with pytest.raises(DeviceError, match=r"cannot register 4096 bytes"):
        port.register(1 << 20, 4096)
    port.close()


def test_a_killed_peer_is_named(devices, gid_index):
    script = str(Path(__file__).with_name("peer.py"))
    end = End(devices[0], gid_index)
    with subprocess.Popen(
        [sys.executable, script, devices[1], str(gid_index)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as peer:  # fmt: skip
        end.connect(msgspec.json.decode(peer.stdout.readline(), type=Told))
        peer.stdin.write(msgspec.json.encode(end.told()).decode() + "\n")
        peer.stdin.flush()
        assert peer.stdout.readline() == "connected\n"
        end.write(1, 64, immediate=77)
        assert end.wait().status is Status.DONE
        assert peer.stdout.readline() == "77\n"
        peer.send_signal(signal.SIGKILL)
        peer.wait()
        end.write(2, 64)
        with pytest.raises(PeerUnreachableError, match="rank 1, lane 1: no answer"):
            require_done(end.wait(), "rank 1, lane 1")
    end.close()
