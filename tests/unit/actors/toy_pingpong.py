"""Two actors that send a 64-byte message to and fro, and one that measures it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from actors.actor import Actor
from actors.channel import Arrays
from actors.topology import ChannelSpec, RoleSpec, Topology


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int
    filling: bytes = bytes(50)


class Pong(msgspec.Struct, frozen=True, tag=True):
    number: int
    filling: bytes = bytes(50)


class Boot(msgspec.Struct, frozen=True):
    report: str
    supervisor: int
    rounds: int
    arrays: bool = False


class Pinger(Actor):
    """Measures round trips, writes the report, ends the world."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.boot = msgspec.msgpack.decode(context.boot, type=Boot)
        self.times: list[int] = []
        self.began = 0

    async def serve(self) -> None:
        self.context.call_later(0.3, self.ping)

    def ping(self) -> None:
        self.began = time.perf_counter_ns()
        self.context.post("ping>pong", Ping(len(self.times)))

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        self.times.append(time.perf_counter_ns() - self.began)
        if len(self.times) < self.boot.rounds:
            self.ping()
            return
        tail = np.array(self.times[self.boot.rounds // 5 :]) / 1000
        p50, p99 = np.percentile(tail, (50, 99))
        Path(self.boot.report).write_text(f"p50 {p50:.1f} us, p99 {p99:.1f} us")
        os.kill(self.boot.supervisor, signal.SIGTERM)


class Ponger(Actor):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.boot = msgspec.msgpack.decode(context.boot, type=Boot)
        self.array = np.zeros((16, 256), np.float32)

    def receive(self, channel: str, message: Any, arrays: Arrays) -> None:
        answer = (self.array,) if self.boot.arrays else ()
        self.context.post("pong>ping", Pong(message.number), answer)


def topology() -> Topology:
    environment = {"PYTHONPATH": str(Path(__file__).parent), "OPENBLAS_NUM_THREADS": "1"}
    return Topology(
        roles=(
            RoleSpec(role="pong", actor="toy_pingpong:Ponger", environment=environment),
            RoleSpec(role="ping", actor="toy_pingpong:Pinger", environment=environment),
        ),
        channels=(
            ChannelSpec(source="ping", target="pong", messages=Ping, ring_bytes=4096, spin_us=15),
            ChannelSpec(
                source="pong",
                target="ping",
                messages=Pong,
                ring_bytes=4096,
                spin_us=15,
                slot_bytes=32768,
                slots=2,
            ),
        ),
    )
