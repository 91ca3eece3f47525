"""One end of a connection over any port, for tests: memory, a region, and a queue pair that the
compiled functions of the poller post to."""

from __future__ import annotations

import mmap
import time
from typing import NamedTuple

import msgspec
import numpy as np

from dgpp.net.verbs.library import Address, Port
from kernels_numba.cpu import requests

DEPTH = 64
PATIENCE_S = 60.0
"""Machines may be emulated; nothing here says how fast the bus is."""
_RECEIVED = 128
"""The bit of an ibv_wc's opcode that says so."""


class Told(msgspec.Struct, frozen=True):
    """What the other end has to know."""

    address: Address
    start: int
    rkey: int
    mtu: int


class Done(NamedTuple):
    """A completion; of one that failed only `number` and `status` are known."""

    number: int
    status: int = 0
    received: bool = False


class End:
    """`mine` is sent from, `theirs` written into by the peer: uint8 [half] each."""

    def __init__(self, port: Port, half: int = 64 << 10, depth: int = DEPTH) -> None:
        self.port, self.half = port, half
        self.memory = mmap.mmap(-1, 2 * half)
        data = np.frombuffer(self.memory, np.uint8)
        self.mine, self.theirs = data[:half], data[half:]
        self.start = int(data.ctypes.data)
        self.completions = port.completion_queue(4 * DEPTH)
        self.region = port.register(self.start, 2 * half)
        self.pair = port.queue_pair(self.completions, depth)
        self._requests = np.zeros(requests.REQUEST_WORDS, np.int64)
        self._at = int(self._requests.ctypes.data)
        self._wc = np.zeros((4, requests.WC_WORDS), np.int64)

    def told(self) -> Told:
        return Told(self.pair.address, self.start + self.half, self.region.rkey, self.port.mtu)

    def connect(self, peer: Told) -> None:
        self.peer = peer
        self.pair.connect(peer.address, min(self.port.mtu, peer.mtu))

    def receive(self, number: int = 0) -> int:
        """Room for one write that is told; an errno."""
        calls = self.pair.calls
        return requests.post_receive(calls.post_receive, calls.pair, self._at, number)

    def write(
        self, length: int, *, number: int = 1, told: bool = False, signaled: bool = True,
        rkey: int | None = None, lkey: int | None = None,
    ) -> int:  # fmt: skip
        """An errno."""
        requests.set_write(
            self._at, 0, number, self.start, length, self.region.lkey if lkey is None else lkey,
            self.peer.start, self.peer.rkey if rkey is None else rkey, int(signaled), int(told),
        )  # fmt: skip
        calls = self.pair.calls
        return requests.post(calls.post_send, calls.pair, self._at, 0)

    def poll(self) -> list[Done]:
        """At most four."""
        calls = self.pair.calls
        count = requests.poll(calls.poll, calls.queue, 4, int(self._wc.ctypes.data))
        assert count >= 0
        return [
            Done(int(wc[0]), int(wc[1] & 0xFFFFFFFF), bool((wc[1] >> 32) & _RECEIVED))
            for wc in self._wc[:count]
        ]

    def wait(self) -> Done:
        """The next completion."""
        deadline = time.monotonic() + PATIENCE_S
        while not (done := self.poll()):
            assert time.monotonic() < deadline, "no completion"
            time.sleep(0)
        assert len(done) == 1
        return done[0]

    def close(self) -> None:
        self.pair.close()
        self.region.close()
        self.completions.close()
