"""Ranks of a bus over real devices, each a process: to be asked, killed and stopped.

They are forked, so that what takes an emulated processor seconds to import is imported once.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from whole_bus import GEOMETRY, PATIENCE_S, WIDTH, bus, exercise

from dgpp.errors import DgppError
from dgpp.net.roce import chosen
from dgpp.net.verbs.collective import VerbsCollective
from dgpp.net.verbs.frames import Geometry
from dgpp.net.verbs.layout import Layout
from dgpp.net.verbs.packages import load
from dgpp.net.verbs.poller import Meeting, Poller
from dgpp.net.verbs.slab import create_bus
from kernels_numba.cpu.memory import Block


class How(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told at birth."""

    devices: list[str]
    gid: int
    rank: int
    world: int
    port: int
    token: bytes = b"t" * 32
    package: str
    geometry: Geometry = GEOMETRY
    timeout_s: float = PATIENCE_S


def parts(world: int, rows: int, width: int) -> list[np.ndarray]:
    """What each rank adds to the sum, the same in every process: float32 [rows, width]."""
    count = rows * width
    return [
        ((np.arange(count, dtype=np.float32) + 1) / (3 + rank)).reshape(rows, width)
        for rank in range(world)
    ]


def expected(world: int, rows: int, width: int) -> np.ndarray:
    """The sum in rank order: float32 [rows, width]."""
    first, *others = parts(world, rows, width)
    for part in others:
        first += part
    return first


class _Rank:
    """In the forked process."""

    def __init__(self, how: How, listener: socket.socket) -> None:
        lanes = chosen(how.devices, [how.gid] * len(how.devices))
        library = load([how.package])
        ports = [library.open(lane, how.gid) for lane in lanes]
        layout = Layout(how.geometry, len(ports), how.world)
        files = create_bus(layout)
        self._poller = Poller(files, how.rank, layout, ports)
        meeting = Meeting("127.0.0.1", how.port, how.token, "1", how.timeout_s)
        asyncio.run(self._poller.join(meeting, None if how.rank else listener))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.bus = VerbsCollective(files, how.rank, layout)
        self.bus.join(how.timeout_s)

    def _run(self) -> None:
        try:
            self._poller.run()
        except DgppError:
            return  # The engine's side raises what it says.

    def sums(self, rows: int, width: int, times: int = 1) -> bool:
        """Whether all-reduces have every bit that they must have."""
        part = Block(parts(self.bus.world, rows, width)[self.bus.rank])
        out = Block(np.zeros((rows, width), np.float32))
        for _ in range(times):
            self.bus.all_reduce(rows, part, out, add=False)
        wanted = expected(self.bus.world, rows, width)
        return np.array_equal(out.array[:, :width].view(np.int32), wanted.view(np.int32))

    def barrier(self) -> int:
        self.bus.barrier()
        return self.bus.generation

    def serve(self) -> bool:
        self.bus.serve()
        return True

    def close(self) -> bool:
        self.bus.close()
        self._thread.join()
        return True


def _live(how: How, listener: socket.socket, pipe: Any) -> None:
    """Do what is asked and answer; errors by name, with the seconds that they took."""
    began = time.monotonic()
    try:
        rank = _Rank(how, listener)
        pipe.send_bytes(msgspec.json.encode(["joined"]))
        while True:
            name, *arguments = msgspec.json.decode(pipe.recv_bytes())
            began = time.monotonic()
            pipe.send_bytes(msgspec.json.encode(["done", getattr(rank, name)(*arguments)]))
            if name == "close":
                os._exit(0)
    except DgppError as error:
        taken = time.monotonic() - began
        said = [type(error).__name__, str(error), error.exit_status, taken]
        pipe.send_bytes(msgspec.json.encode(["failed", said]))
    except BaseException:  # noqa: BLE001 - shown where the test's own output is
        traceback.print_exc()
    finally:
        os._exit(1)


class Fell(Exception):
    """A rank ended with a named error."""

    def __init__(self, kind: str, text: str, status: int, seconds: float) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.status, self.seconds = kind, text, status, seconds


@functools.cache
def _warm(devices: tuple[str, ...], gid: int, package: str) -> None:
    """All that Numba and the verbs library set up at the first call, before the ranks part."""
    with bus(devices, gid, 2, [package]) as go:
        go(lambda rank: exercise(rank, WIDTH))


class Ranks:
    """Ranks 0, 1, … of one bus, rank r on device r of `devices`, in turn."""

    def __init__(
        self, world: int, devices: list[str], gid: int, package: str = "pyverbs", /, **told: Any
    ) -> None:
        """`told[name][rank]` differs from what the other ranks are told."""
        _warm(tuple(devices), gid, package)
        fork = multiprocessing.get_context("fork")
        self._pipes, self._processes = [], []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for rank in range(world):
                own = {name: values[rank] for name, values in told.items() if rank in values}
                how = How(
                    **{
                        "devices": [devices[rank % len(devices)]], "gid": gid, "rank": rank,
                        "world": world, "port": listener.getsockname()[1], "package": package,
                    } | own
                )  # fmt: skip
                mine, theirs = fork.Pipe()
                process = fork.Process(target=_live, args=(how, listener, theirs), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(mine)
                self._processes.append(process)

    def ask(self, rank: int, name: str, *arguments: Any) -> None:
        self._pipes[rank].send_bytes(msgspec.json.encode([name, *arguments]))

    def answer(self, rank: int) -> Any:
        """What `rank` says next. Raises Fell."""
        assert self._pipes[rank].poll(PATIENCE_S), f"rank {rank} says nothing"
        kind, *values = msgspec.json.decode(self._pipes[rank].recv_bytes())
        if kind == "failed":
            raise Fell(*values[0])
        return values[0] if values else None

    def all(self, name: str, *arguments: Any) -> list[Any]:
        for rank in range(len(self._pipes)):
            self.ask(rank, name, *arguments)
        return [self.answer(rank) for rank in range(len(self._pipes))]

    def joined(self) -> Ranks:
        for rank in range(len(self._pipes)):
            self.answer(rank)
        return self

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self._processes[rank].pid, number)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@contextmanager
def ranks(*arguments: Any, **told: Any):
    made = Ranks(*arguments, **told)
    try:
        yield made
    finally:
        made.end()
