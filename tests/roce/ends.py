"""One end of a connection over a real device, for tests: memory, a region and a queue pair."""

from __future__ import annotations

import mmap
import time

import msgspec
import numpy as np

from dgpp.net.roce import chosen
from dgpp.net.verbs.by_pyverbs import load
from dgpp.net.verbs.library import Address, Completion

SMALL = 64 << 10
DEPTH = 64
PATIENCE_S = 60.0
"""The machine is emulated; nothing here says how fast the bus is."""


class Told(msgspec.Struct, frozen=True):
    """What the other end has to know."""

    address: Address
    start: int
    rkey: int
    mtu: int


class End:
    """`mine` is sent from, `theirs` written into by the peer: uint8 [half] each."""

    def __init__(self, device: str, gid_index: int, half: int = SMALL) -> None:
        self.half = half
        self.port = load().open(chosen([device], [gid_index])[0], gid_index)
        self.memory = mmap.mmap(-1, 2 * half)
        data = np.frombuffer(self.memory, np.uint8)
        self.mine, self.theirs = data[:half], data[half:]
        self.start = int(data.ctypes.data)
        self.completions = self.port.completion_queue(4 * DEPTH)
        self.region = self.port.register(self.start, 2 * half)
        self.pair = self.port.queue_pair(self.completions, DEPTH)

    def told(self) -> Told:
        return Told(self.pair.address, self.start + self.half, self.region.rkey, self.port.mtu)

    def connect(self, peer: Told) -> None:
        self.peer = peer
        self.pair.connect(peer.address, min(self.port.mtu, peer.mtu))

    def receive(self, wr_id: int, length: int = 0) -> None:
        self.pair.post_receive(wr_id, self.start + self.half, length, self.region.lkey)

    def write(self, wr_id: int, length: int, *, rkey: int | None = None, **options) -> None:
        self.pair.post_write(
            wr_id, self.start, length, self.region.lkey, self.peer.start,
            self.peer.rkey if rkey is None else rkey, **options,
        )  # fmt: skip

    def wait(self) -> Completion:
        deadline = time.monotonic() + PATIENCE_S
        while not (done := self.completions.poll(1)):
            assert time.monotonic() < deadline, "no completion"
            time.sleep(0)
        return done[0]

    def close(self) -> None:
        self.pair.close()
        self.region.close()
        self.completions.close()
        self.port.close()
