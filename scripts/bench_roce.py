"""The RoCE bus beside bare verbs on two devices of this machine, in one run.

usage: scripts/roce-vm run 500 .venv/bin/python scripts/bench_roce.py [DEVICE DEVICE [GID]]

Bare: two processes of pyverbs alone, which sleep until a completion comes; a ping-pong of 8 KiB
writes with an immediate, there and back, and 1 MiB writes, one way and then both ways at once. The
bus: two ranks, each an engine and a poller process as in service, all-reduces of 8 KiB and of 1
MiB; on fewer than four processors they sleep too. Medians.

An all-reduce of two ranks moves its size both ways at once: where one processor does the work of
both ends, bare writes both ways are the most that it could reach.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import os
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from command_line import ended

from dgpp.cli.numbers import number
from dgpp.errors import ConfigError
from dgpp.net.roce import chosen
from dgpp.net.verbs import by_pyverbs
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.library import Address
from dgpp.net.verbs.packages import load
from dgpp.net.verbs.poller import Meeting, Poller
from dgpp.net.verbs.port import VerbsLibrary
from dgpp.net.verbs.slab import BusFiles, create_bus
from kernels_numba.cpu.memory import Block

SMALL, LARGE = 8 << 10, 1 << 20
ROUNDS, LARGE_ROUNDS, WARM = 300, 24, 20
IN_FLIGHT, IN_FLIGHT_BOTH = 2, 1
"""Writes of 1 MiB, one way and both. Of more, on a slow processor, the last are not answered before
they are sent again, and soft-RoCE breaks off at times."""
RECEIVES = 64
WIDTH = 2048
"""Values of a row: 8 KiB in float32."""


class _Told(msgspec.Struct):
    """What a bare end has to know of the other one."""

    address: Address
    start: int
    rkey: int
    mtu: int


class Bare:
    """One end. What is timed is pyverbs alone; the project's library only connects it."""

    def __init__(self, device: str, gid: int) -> None:
        self._binding = by_pyverbs.load()
        self.port = VerbsLibrary(self._binding).open(chosen([device], [gid])[0], gid)
        self.memory = mmap.mmap(-1, 2 * LARGE)
        self.start = int(np.frombuffer(self.memory, np.uint8).ctypes.data)
        self.completions = self.port.completion_queue(4 * RECEIVES)
        self.region = self.port.register(self.start, 2 * LARGE)
        self.pair = self.port.queue_pair(self.completions, RECEIVES)
        self._queue, self._armed = self.completions.queue, False
        self._raw: Any = self.pair.made
        self._written = self._binding.numbers["IBV_WC_RECV_RDMA_WITH_IMM"]

    def meet(self, other: socket.socket) -> None:
        told = _Told(self.pair.address, self.start + LARGE, self.region.rkey, self.port.mtu)
        other.sendall(msgspec.json.encode(told))
        peer = msgspec.json.decode(other.recv(4096), type=_Told)
        self.pair.connect(peer.address, min(self.port.mtu, peer.mtu))
        wr, numbers = self._binding.wr, self._binding.numbers
        self._receive = wr.RecvWR(wr_id=1, num_sge=1, sg=[wr.SGE(self.start, 0, self.region.lkey)])
        for _ in range(RECEIVES):
            self._raw.post_recv(self._receive)

        def write(size: int, code: str) -> Any:
            request = wr.SendWR(
                wr_id=2, opcode=numbers[code], num_sge=1, send_flags=numbers["IBV_SEND_SIGNALED"],
                sg=[wr.SGE(self.start, size, self.region.lkey)],
            )  # fmt: skip
            request.set_wr_rdma(peer.rkey, peer.start)
            return request

        self.small = write(SMALL, "IBV_WR_RDMA_WRITE_WITH_IMM")
        self.large = write(LARGE, "IBV_WR_RDMA_WRITE")
        other.sendall(b"r")
        other.recv(1)

    def _poll(self) -> list[Any]:
        while not (found := self._queue.poll(16))[0]:
            if self._armed:
                self.completions.quiet()
            else:
                self.completions.arm()
            self._armed = not self._armed
        for one in found[1]:
            if one.status:
                raise RuntimeError(f"bare writes broke off: status {one.status}")
        return list(found[1])

    def wait_written(self) -> None:
        while not (came := [one for one in self._poll() if one.opcode == self._written]):
            pass
        for _ in came:
            self._raw.post_recv(self._receive)

    def ping(self, rounds: int, *, first: bool) -> list[float]:
        """Seconds there and back, of the end that begins."""
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            if first:
                self._raw.post_send(self.small)
            self.wait_written()
            if not first:
                self._raw.post_send(self.small)
            times.append(time.perf_counter() - began)
        return times

    def stream(self, rounds: int, at_once: int) -> float:
        """Bytes per second of writes, so many at once."""
        times = [time.perf_counter()]
        posted = 0
        while len(times) <= rounds:
            while posted < rounds and posted - len(times) + 1 < at_once:
                self._raw.post_send(self.large)
                posted += 1
            times += [time.perf_counter()] * len(self._poll())
        spans = [later - time for time, later in zip(times, times[at_once:], strict=False)]
        return at_once * LARGE / statistics.median(spans)


def forked(work: Callable[[], None]) -> int:
    """The process that does `work`."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except Exception:  # noqa: BLE001 - the process ends here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return pid


def ended_well(pids: list[int]) -> bool:
    # All are waited for.
    return {os.waitpid(pid, 0)[1] for pid in pids} == {0}


def require_well(pids: list[int]) -> None:
    if not ended_well(pids):
        sys.exit("a process of the measurement failed")


def bare(devices: list[str], gid: int) -> tuple[float, float]:
    """Seconds of a ping-pong and bytes per second of writes."""
    ours, theirs = socket.socketpair()
    read, write = os.pipe()

    # Each end has its own socket alone: it reads the end where the other process has died.
    def first() -> None:
        theirs.close()
        end = Bare(devices[0], gid)
        end.meet(ours)
        end.ping(WARM, first=True)
        median = statistics.median(end.ping(ROUNDS, first=True))
        os.write(write, msgspec.json.encode([median, end.stream(LARGE_ROUNDS, IN_FLIGHT)]))
        ours.sendall(b"e")

    def second() -> None:
        ours.close()
        end = Bare(devices[1], gid)
        end.meet(theirs)
        end.ping(WARM + ROUNDS, first=False)
        theirs.recv(1)

    pids = [forked(first), forked(second)]
    ours.close()
    theirs.close()
    require_well(pids)
    latency, rate = msgspec.json.decode(os.read(read, 4096))
    return latency, rate


def both_ways(devices: list[str], gid: int) -> float:
    """Bytes per second of writes each way, at once; NaN where the devices break off."""
    sockets = socket.socketpair()
    read, write = os.pipe()

    def side(rank: int) -> None:
        sockets[1 - rank].close()
        end = Bare(devices[rank], gid)
        end.meet(sockets[rank])
        rate = end.stream(LARGE_ROUNDS, IN_FLIGHT_BOTH)
        sockets[rank].sendall(msgspec.json.encode(rate))
        told = msgspec.json.decode(sockets[rank].recv(4096))
        if rank == 0:
            os.write(write, msgspec.json.encode((rate + told) / 2))

    pids = [forked(lambda rank=rank: side(rank)) for rank in range(2)]
    for end in sockets:
        end.close()
    return float(msgspec.json.decode(os.read(read, 4096))) if ended_well(pids) else math.nan


def bus(devices: list[str], gid: int) -> tuple[float, float]:
    """Seconds of an all-reduce of 8 KiB and bytes per second of one of 1 MiB."""
    layout = Layout(Geometry(), 1, 2)
    files = [create_bus(layout) for _ in devices]
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        meeting = Meeting("127.0.0.1", listener.getsockname()[1], b"token" * 8, "1", 120.0)

        def poll(rank: int) -> None:
            port = load().open(chosen([devices[rank]], [gid])[0], gid)
            poller = Poller(files[rank], rank, layout, [port])
            asyncio.run(poller.join(meeting, None if rank else listener))
            poller.run()
            poller.close()
            port.close()

        pids = [forked(lambda rank=rank: poll(rank)) for rank in range(2)]
    pids += [forked(lambda rank=rank: _reduce(files[rank], rank, layout, write)) for rank in (0, 1)]
    require_well(pids)
    latency, rate = msgspec.json.decode(os.read(read, 4096))
    return latency, rate


def _reduce(files: BusFiles, rank: int, layout: Layout, write: int) -> None:
    collective = VerbsCollective(files, rank, layout)
    collective.join(120.0)

    def timed(rows: int, rounds: int) -> float:
        part, out = (Block(np.ones((rows, WIDTH), np.float32)) for _ in range(2))
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            collective.all_reduce(rows, part, out, add=False)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    timed(1, WARM)
    latency = timed(1, ROUNDS)
    timed(LARGE // SMALL, 2)
    rate = LARGE / timed(LARGE // SMALL, LARGE_ROUNDS)
    if rank == 0:
        os.write(write, msgspec.json.encode([latency, rate]))
    collective.barrier()
    collective.close()


def main() -> None:
    arguments = sys.argv[1:]
    devices = arguments[:2] or os.environ.get("DGPP_TEST_ROCE_DEVICES", "").split()
    if len(devices) != 2:
        raise ConfigError("expected DEVICE DEVICE [GID]; `dgpp discover-roce` names devices")
    gid = -1 if len(arguments) < 3 else number("GID", arguments[2], 0, 65535)
    # What is missing is said once, not by each process.
    by_pyverbs.load()
    chosen(devices, [gid] * 2)
    pong, writes = bare(devices, gid)
    crossing = both_ways(devices, gid)
    small, large = bus(devices, gid)
    print(f"{os.cpu_count()} processors")
    print(f"bare ping-pong of 8 KiB, write with immediate, p50: {pong * 1e6:9.1f} us")
    print(f"all-reduce of 8 KiB, two ranks, p50:                {small * 1e6:9.1f} us")
    print(f"  in ping-pongs (aim: at most 3):                   {small / pong:9.2f}")
    print(f"bare writes of 1 MiB, one way:                      {writes / 1e6:9.1f} MB/s")
    print(f"  both ways at once, each way:                      {crossing / 1e6:9.1f} MB/s")
    print(f"all-reduce of 1 MiB, two ranks:                     {large / 1e6:9.1f} MB/s")
    print(f"  of writes one way (aim: at least 60 %):           {100 * large / writes:9.1f} %")
    print(f"  of writes both ways, each way:                    {100 * large / crossing:9.1f} %")


if __name__ == "__main__":
    ended(main)
