"""Ports of one fake network (`fake_adapter`), as unreliable as a test asks for."""

from __future__ import annotations

import os
import random
from itertools import count
from typing import NamedTuple

import fake_adapter as adapter
import numpy as np

from dgpp.net.verbs.errors import DeviceError
from dgpp.net.verbs.library import Address, Calls

MOST_PAIRS = 64


class Faults(NamedTuple):
    """One in how many; 0 for never. `lost`: but never so often in a row that an adapter gives up.
    `early`: a write arrives before the one posted ahead of it, as memory behind an adapter may show
    it. `delayed`: one in how many polls moves anything."""

    lost: int = 0
    doubled: int = 0
    early: int = 0
    delayed: int = 0


class Fabric:
    """All ports of one network."""

    def __init__(self, faults: Faults = Faults(), seed: int = 1) -> None:  # noqa: B008
        self.faults, self.random = faults, random.Random(seed)
        self.numbers = count(1)
        self.pairs: dict[int, FakePair] = {}
        self.ports: dict[str, FakePort] = {}

    def port(self, name: str) -> FakePort:
        port = self.ports[name] = FakePort(self, name)
        return port

    def kill(self, name: str) -> None:
        self.ports[name].words[adapter.DEAD] = 1


def address_of(array: np.ndarray) -> int:
    return int(array.ctypes.data)


class FakePort:
    mtu = 4096
    gbps = 0.0

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.fabric, self.name = fabric, name
        self.gid = name.encode().ljust(16, b"\0")
        self.words = np.zeros(adapter.PORT_WORDS, np.int64)
        self.open = 0

    def completion_queue(self, depth: int) -> FakeCompletions:
        self.open += 1
        return FakeCompletions(self)

    def register(self, address: int, length: int) -> FakeRegion:
        return FakeRegion(self, address, length)

    def queue_pair(self, completions: FakeCompletions, depth: int) -> FakePair:
        self.open += 1
        return FakePair(self, completions, depth)

    def close(self) -> None:
        assert self.open == 0, "closed before what it made"


class FakeRegion:
    def __init__(self, port: FakePort, address: int, length: int) -> None:
        self.port, self.address, self.length = port, address, length
        self.lkey, self.rkey = next(port.fabric.numbers), next(port.fabric.numbers)
        words, number = port.words, port.words[adapter.REGIONS]
        first = adapter.FIRST_REGION + 4 * number
        words[first : first + 4] = self.lkey, self.rkey, address, length
        words[adapter.REGIONS] += 1
        port.open += 1

    def close(self) -> None:
        self.port.open -= 1
        self.port.words[adapter.REGIONS] = 0


class FakeCompletions:
    """Always says that something may have reported: work moves only when it is polled."""

    def __init__(self, port: FakePort) -> None:
        self.port = port
        self.words = np.zeros(1 + MOST_PAIRS, np.int64)
        self.fd = os.eventfd(1)
        self.armed = 0

    def arm(self) -> None:
        self.armed += 1

    def quiet(self) -> None:
        assert self.armed, "nobody asked to be told"

    def close(self) -> None:
        self.port.open -= 1
        os.close(self.fd)


class FakePair:
    def __init__(self, port: FakePort, completions: FakeCompletions, depth: int) -> None:
        self.port, self.fabric = port, port.fabric
        self.address = Address(next(self.fabric.numbers), 0x1234, port.gid)
        self.fabric.pairs[self.address.number] = self
        size = adapter.PAIR_WORDS + (adapter.SEND_WORDS + 1) * depth
        self.words = np.zeros(size, np.int64)
        self.words[adapter.PORT], self.words[adapter.DEPTH] = address_of(port.words), depth
        self.words[adapter.RANDOM] = self.fabric.random.getrandbits(62) | 1
        for word, one_in in zip(
            (adapter.LOST, adapter.DOUBLED, adapter.EARLY, adapter.DELAYED),
            self.fabric.faults,
            strict=True,
        ):
            self.words[word] = one_in
        queue = completions.words
        queue[0] += 1
        queue[queue[0]] = address_of(self.words)
        self.calls = Calls(
            address_of(self.words),
            address_of(queue),
            adapter.post_send.address,
            adapter.post_receive.address,
            adapter.poll.address,
        )

    def connect(self, peer: Address, mtu: int) -> None:
        other = self.fabric.pairs.get(peer.number)
        if other is None or other.address != peer or mtu > self.port.mtu:
            raise DeviceError("fake: no way there")
        self.words[adapter.PEER] = address_of(other.words)

    def close(self) -> None:
        # Its words stay: a peer that is not closed yet looks at them.
        self.words[adapter.BROKEN] = 1
        self.port.open -= 1
