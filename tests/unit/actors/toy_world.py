"""A small world: door (faces outside) → worker → keeper → door. Used in processes and inline."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from actors.actor import Actor
from actors.channel import Arrays
from actors.memory import create_memfd
from actors.statistics import Metric
from actors.topology import ChannelSpec, RoleSpec, Topology
from dgpp.errors import ConfigError


class Boot(msgspec.Struct, frozen=True):
    """`break_at`: "role:hook" raises there. `marks`: a folder that hooks leave files in."""

    marks: str
    break_at: str = ""
    messages: int = 3
    slow_drain_s: float = 0.0
    linger_s: float = 0.0
    shutdown_s: float = 1.0


class Work(msgspec.Struct, frozen=True, tag=True):
    number: int


class Noise(msgspec.Struct, frozen=True, tag=True):
    text: str


class Sum(msgspec.Struct, frozen=True):
    number: int
    total: float


def hold_interpreter(seconds: float) -> None:
    """As a long call into C that keeps the GIL: not even the heart-beat thread runs."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class ToyActor(Actor):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.boot = msgspec.msgpack.decode(context.boot, type=Boot)
        self.mark("pid", str(os.getpid()))

    def mark(self, name: str, text: str = "") -> None:
        target = Path(self.boot.marks) / f"{self.context.role}.{name}"
        part = target.with_suffix(target.suffix + ".part")
        part.write_text(text)
        part.rename(target)

    def maybe_break(self, hook: str) -> None:
        if self.boot.break_at == f"{self.context.role}:{hook}":
            raise ValueError(f"broken in {hook}")
        if self.boot.break_at == f"{self.context.role}:{hook}:named":
            raise ConfigError(f"named in {hook}")

    async def start(self) -> None:
        self.maybe_break("start")
        if self.boot.break_at == f"{self.context.role}:start:slow":
            await asyncio.sleep(60)
        if self.boot.break_at == f"{self.context.role}:start:hold":
            with self.context.loading("holding the interpreter"):
                hold_interpreter(1.5)
        self.mark("start")

    async def stop(self) -> None:
        self.maybe_break("stop")
        self.mark("stop", str(time.monotonic_ns()))


class Door(ToyActor):
    """Posts work once serving, collects the sums."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.sums: list[Sum] = []

    async def serve(self) -> None:
        # What breaks a handler must come after the world was ready.
        self.context.call_later(0.1, self.post_all)

    def post_all(self) -> None:
        for number in range(self.boot.messages):
            self.context.post("door>worker", Work(number))
        if not self.boot.messages:
            self.mark("done", "[]")

    def receive(self, channel: str, message: Any, arrays: Arrays) -> Awaitable[None] | None:
        assert isinstance(message, Sum)
        self.maybe_break("receive")
        self.sums.append(message)
        self.context.statistics.counter("sums").add()
        if len(self.sums) == self.boot.messages:
            read = {role: block.read() for role, block in self.context.peers.items()}
            self.mark("done", repr((self.sums, read)))
        return None

    async def drain(self, timeout_s: float) -> None:
        self.maybe_break("drain")
        await asyncio.sleep(self.boot.slow_drain_s)
        self.mark("drain")

    async def fail(self, cause: str, code: str, age_s: float) -> None:
        self.mark("fail", f"{cause}|{code}")
        self.context.post("door>worker", Work(0))
        await asyncio.sleep(self.boot.linger_s)


class Worker(ToyActor):
    """Makes an array of each number, awaiting in between."""

    async def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        self.maybe_break("receive")
        array = await self.context.run_blocking(np.full, (3, 5), float(message.number))
        self.context.post("worker>keeper", message, [array, np.arange(4, dtype=np.uint16)])
        self.context.statistics.counter("works").add()


class Keeper(ToyActor):
    """Sums the arrays, and keeps what was handed to it."""

    async def start(self) -> None:
        await super().start()
        if (note := self.context.files.get("note")) is not None:
            self.mark("note", os.pread(note, 100, 0).decode())

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        self.maybe_break("receive")
        first, second = arrays
        assert not first.flags.writeable
        if self.boot.break_at == "keeper:receive:hold":
            hold_interpreter(3)
        if self.boot.break_at == "keeper:receive:end":
            self.context.end_world("keeper has enough")
        if self.boot.break_at == "keeper:receive:watch":
            self.context.watch(lambda seconds: f"keeper waited {seconds:g} s")
        total = float(first.sum()) + int(second.sum())
        self.context.post("keeper>door", Sum(message.number, total))

    async def stop(self) -> None:
        if self.boot.break_at == "keeper:hang":
            await asyncio.sleep(60)
        await super().stop()


def topology(shutdown_s: float = 5.0) -> Topology:
    folder = str(Path(__file__).parent)
    paths = (folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OPENBLAS_NUM_THREADS": "1"}

    def role(name: str, actor: str, **more: Any) -> RoleSpec:
        return RoleSpec(
            role=name,
            actor=f"toy_world:{actor}",
            shutdown_s=shutdown_s,
            environment=environment,
            **more,
        )

    return Topology(
        roles=(
            role("keeper", "Keeper"),
            role("worker", "Worker", statistics=(Metric("works", "counter"),)),
            role("door", "Door", faces_outside=True, statistics=(Metric("sums", "counter"),)),
        ),
        channels=(
            ChannelSpec(source="door", target="worker", messages=Work | Noise, ring_bytes=256),
            ChannelSpec(
                source="worker",
                target="keeper",
                messages=Work | Noise,
                ring_bytes=256,
                slot_bytes=512,
                slots=2,
            ),
            ChannelSpec(
                source="keeper", target="door", messages=Sum, ring_bytes=256, always_drain=True
            ),
        ),
    )


def boots(boot: Boot) -> dict[str, bytes]:
    encoded = msgspec.msgpack.encode(boot)
    return dict.fromkeys(("door", "worker", "keeper"), encoded)


def main(arguments: list[str]) -> int:
    """`toy_world.py PLACEMENT BOOT_JSON SETTINGS_JSON`: a supervisor for tests to torment."""
    import logging

    from actors.run import run_world
    from actors.supervisor import Settings

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    boot = msgspec.json.decode(arguments[1], type=Boot)
    settings = msgspec.json.decode(arguments[2], type=Settings)
    note = create_memfd("note", 16)
    os.pwrite(note, b"handed to keeper", 0)
    world = topology(boot.shutdown_s)
    keeper = msgspec.structs.replace(world.roles[0], files={"note": note})
    return run_world(
        msgspec.structs.replace(world, roles=(keeper, *world.roles[1:])),
        boots(boot),
        placement="inline" if arguments[0] == "inline" else "processes",
        settings=settings,
        on_ready=lambda: print("READY", flush=True),
    )


if __name__ == "__main__":
    # The child and this script must see one module, for its message types to be the same.
    import toy_world

    sys.exit(toy_world.main(sys.argv[1:]))
