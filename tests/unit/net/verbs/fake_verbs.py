"""Adapters and a network of pure Python, as unreliable as a test asks for.

Memory is the process's own and really written. Work waits until `step`; which queue pair moves,
and what goes wrong, `choose(n)` in 0..n-1 decides: a seed or hypothesis.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from dgpp.net.verbs.errors import DeviceError, PostError
from dgpp.net.verbs.library import RETRIES, RNR_RETRIES, Address, Completion, Event, Status

PIECE = 4096
"""Bytes of a write that arrive at once."""


class Faults(NamedTuple):
    """One in how many; 0 for never. `early`: a write arrives before the one posted ahead of it,
    as memory behind an adapter may show it."""

    lost: int = 0
    duplicated: int = 0
    early: int = 0


class Work:
    """Something posted; `remote` 0 for a send."""

    def __init__(self, wr_id, address, length, signaled, remote=0, rkey=0, immediate=None):
        self.wr_id, self.address, self.length, self.signaled = wr_id, address, length, signaled
        self.remote, self.rkey, self.immediate = remote, rkey, immediate
        self.local = True
        self.at = 0
        self.tries = 0
        self.arrived: Status | None = None


class Fabric:
    """All ports of one network."""

    def __init__(self, choose: Callable[[int], int], faults: Faults = Faults()) -> None:  # noqa: B008
        self.choose, self.faults = choose, faults
        self.pairs: dict[int, FakePair] = {}
        self.numbers = count(1)
        self.dead: set[str] = set()

    def port(self, name: str) -> FakePort:
        return FakePort(self, name)

    def kill(self, name: str) -> None:
        self.dead.add(name)

    def one_in(self, n: int) -> bool:
        return n > 0 and self.choose(n) == 0

    def step(self) -> bool:
        """Move one piece of work on; False where there is none."""
        busy = [p for p in self.pairs.values() if p.queue and p.port.name not in self.dead]
        if not busy:
            return False
        busy[self.choose(len(busy)) if len(busy) > 1 else 0].move()
        return True

    def settle(self) -> None:
        while self.step():
            pass


class FakeRegion:
    def __init__(self, port: FakePort, address: int, length: int) -> None:
        self.port, self.address, self.length = port, address, length
        self.lkey = next(port.fabric.numbers)
        self.rkey = next(port.fabric.numbers)
        port.regions.append(self)

    def holds(self, address: int, length: int) -> bool:
        return self.address <= address and address + length <= self.address + self.length

    def close(self) -> None:
        self.port.regions.remove(self)


class FakeCompletions:
    """Work leaves a send queue when a completion at or behind it is polled, as in adapters."""

    def __init__(self) -> None:
        self.entries: list[Completion] = []
        self.ends: list[tuple[FakePair, int] | None] = []

    def add(self, completion: Completion, end: tuple[FakePair, int] | None = None) -> None:
        self.entries.append(completion)
        self.ends.append(end)

    def poll(self, most: int) -> list[Completion]:
        taken, self.entries = self.entries[:most], self.entries[most:]
        for end in self.ends[:most]:
            if end is not None:
                end[0].reclaimed = end[1]
        self.ends = self.ends[most:]
        return taken

    def close(self) -> None:
        self.entries = []


class FakePort:
    mtu = 4096

    def __init__(self, fabric: Fabric, name: str) -> None:
        self.fabric, self.name = fabric, name
        self.gid = name.encode().ljust(16, b"\0")
        self.regions: list[FakeRegion] = []

    def completion_queue(self, depth: int) -> FakeCompletions:
        return FakeCompletions()

    def register(self, address: int, length: int) -> FakeRegion:
        return FakeRegion(self, address, length)

    def queue_pair(self, completions: FakeCompletions, depth: int) -> FakePair:
        return FakePair(self, completions, depth)

    def close(self) -> None:
        assert not self.regions, "closed with regions"


class FakePair:
    def __init__(self, port: FakePort, completions: FakeCompletions, depth: int) -> None:
        self.port, self.completions, self.depth = port, completions, depth
        self.fabric = port.fabric
        self.address = Address(next(self.fabric.numbers), 0x1234, port.gid)
        self.fabric.pairs[self.address.number] = self
        self.queue: list[Work] = []
        self.receives: list[tuple[int, int, int]] = []
        self.peer: FakePair | None = None
        self.broken = False
        self.posted = self.ended = self.reclaimed = 0

    def connect(self, peer: Address, mtu: int) -> None:
        other = self.fabric.pairs.get(peer.number)
        if other is None or other.address != peer or mtu > self.port.mtu:
            raise DeviceError("fake: no way there")
        self.peer = other

    def post_receive(self, wr_id: int, address: int, length: int, lkey: int) -> None:
        self.receives.append((wr_id, address, length))

    def post_send(self, wr_id, address, length, lkey, *, signaled=True) -> None:
        self._post(Work(wr_id, address, length, signaled), lkey)

    def post_write(
        self, wr_id, address, length, lkey, remote, rkey, *, immediate=None, signaled=True
    ) -> None:
        self._post(Work(wr_id, address, length, signaled, remote, rkey, immediate), lkey)

    def close(self) -> None:
        del self.fabric.pairs[self.address.number]

    def _post(self, work: Work, lkey: int) -> None:
        if self.peer is None or self.posted - self.reclaimed >= self.depth:
            raise PostError("fake: not connected, or full")
        regions = self.port.regions
        work.local = any(r.lkey == lkey and r.holds(work.address, work.length) for r in regions)
        self.queue.append(work)
        self.posted += 1
        if self.broken:
            self._flush()

    # Moving ------------------------------------------------------------------------------------

    def move(self) -> None:
        """One piece of the first work, or of the second where it is early."""
        waiting = [work for work in self.queue if work.arrived is None]
        early = len(waiting) > 1 and waiting[0].remote and waiting[1].remote
        early = (
            early and waiting[1].immediate is None and self.fabric.one_in(self.fabric.faults.early)
        )
        work = waiting[1 if early else 0]
        self._attempt(work)
        while self.queue and self.queue[0].arrived is not None:
            first = self.queue.pop(0)
            self.ended += 1
            if first.arrived is not Status.DONE:
                self._report(first, first.arrived)
                self.broken = True
                self._flush()
            elif first.signaled:
                self._report(first, Status.DONE)

    def _attempt(self, work: Work) -> None:
        assert self.peer is not None
        if not work.local:
            work.arrived = Status.LOCAL_ACCESS
            return
        gone = self.peer.port.name in self.fabric.dead or self.peer.broken
        if gone or self.fabric.one_in(self.fabric.faults.lost):
            work.tries += 1
            if work.tries > RETRIES:
                work.arrived = Status.UNREACHABLE
            return
        needs_receive = not work.remote or work.immediate is not None
        if needs_receive and not self.peer.receives:
            work.tries += 1
            if work.tries > RNR_RETRIES:
                work.arrived = Status.NOT_READY
            return
        work.tries = 0
        if work.remote:
            self._write(work)
        else:
            self._send(work)

    def _write(self, work: Work) -> None:
        peer = self.peer
        if not any(
            r.rkey == work.rkey and r.holds(work.remote, work.length) for r in peer.port.regions
        ):
            work.arrived = Status.REMOTE_ACCESS
            return
        piece = min(PIECE, work.length - work.at)
        for _ in range(1 + self.fabric.one_in(self.fabric.faults.duplicated)):
            ctypes.memmove(work.remote + work.at, work.address + work.at, piece)
        work.at += piece
        if work.at < work.length:
            return
        work.arrived = Status.DONE
        if work.immediate is not None:
            wr_id, _address, _length = peer.receives.pop(0)
            peer.completions.add(
                Completion(wr_id, Event.WRITTEN, Status.DONE, work.immediate, work.length)
            )

    def _send(self, work: Work) -> None:
        wr_id, address, length = self.peer.receives.pop(0)
        if work.length > length:
            work.arrived = Status.OTHER
            return
        ctypes.memmove(address, work.address, work.length)
        work.arrived = Status.DONE
        self.peer.completions.add(Completion(wr_id, Event.RECEIVED, Status.DONE, 0, work.length))

    def _flush(self) -> None:
        for work in self.queue:
            self.ended += 1
            self._report(work, Status.FLUSHED)
        self.queue = []

    def _report(self, work: Work, status: Status) -> None:
        event = Event.SENT if status is Status.DONE else Event.FAILED
        self.completions.add(Completion(work.wr_id, event, status), (self, self.ended))
