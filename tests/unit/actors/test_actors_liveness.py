"""Heart-beats, statistics, control messages and the inline world on a loop with a false clock."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import toy_world

from actors import control, heartbeat
from actors.context import run_here
from actors.heartbeat import (
    BEAT_S,
    STOPPED_S,
    SUPERVISOR,
    Heartbeat,
    HeartbeatPage,
    HeartbeatWatch,
    Standstill,
    end_with_supervisor,
    heartbeat_bytes,
)
from actors.inline import InlineWorld
from actors.memory import local_memory
from actors.rank import end_with_host
from actors.rank_spec import RankSpec
from actors.spec import ChildSpec, read_spec, write_spec
from actors.statistics import HistogramValue, Metric, StatisticsBlock, block_bytes
from actors.supervisor import RELEASED
from dgpp.net.journal_errors import JournalContractError, RankFailedError, ReleasedError

METRICS = (
    Metric("requests", "counter"),
    Metric("wait_s", "histogram", (0.1, 1.0)),
    Metric("live", "gauge"),
)


def test_statistics_are_seen_through_another_view() -> None:
    memory = local_memory(block_bytes(METRICS))
    writer, reader = StatisticsBlock(memory, METRICS), StatisticsBlock(memory, METRICS)
    writer.counter("requests").add()
    writer.counter("requests").add(2)
    writer.gauge("live").set(-1.5)
    wait = writer.histogram("wait_s")
    for value in (0.05, 0.1, 0.5, 7.0):
        wait.observe(value)
    read = reader.read()
    assert read["requests"] == 3
    assert read["live"] == -1.5
    histogram = read["wait_s"]
    assert isinstance(histogram, HistogramValue)
    assert histogram.counts == (2, 1, 1)
    assert histogram.total == pytest.approx(7.65)
    with pytest.raises(KeyError, match="is a gauge"):
        writer.counter("live")


def test_block_without_metrics_has_memory() -> None:
    assert block_bytes(()) == 8


def test_still_word_is_counted_in_looks() -> None:
    page = HeartbeatPage(local_memory(heartbeat_bytes(1)))
    watch = HeartbeatWatch(page, 1, os.getpid())

    def looks(count: int) -> list[Standstill | None]:
        return [watch.look(0.3) for _ in range(count)]

    assert looks(3) == [None, None, Standstill(pytest.approx(0.3), stopped=False)]
    page.beat(1)
    assert looks(1) == [None]
    page.beat(0)
    assert looks(3)[-1] is not None


def test_a_process_that_a_signal_stops_is_known_from_one_that_is_busy() -> None:
    page = HeartbeatPage(local_memory(heartbeat_bytes(1)))
    with subprocess.Popen(["sleep", "60"]) as process:
        watch = HeartbeatWatch(page, 1, process.pid)

        def looks(seconds: float) -> list[Standstill | None]:
            return [watch.look(60.0) for _ in range(round(seconds / BEAT_S))]

        assert looks(2 * STOPPED_S) == [None] * 20
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        *before, last = looks(STOPPED_S)
        assert before == [None] * 9
        assert last == Standstill(STOPPED_S, stopped=True)
        assert last.words == "stopped responding: a signal has stopped it"
        process.send_signal(signal.SIGCONT)
        os.waitpid(process.pid, os.WCONTINUED)
        assert looks(2 * STOPPED_S) == [None] * 20
        process.kill()
    assert looks(2 * STOPPED_S) == [None] * 20


def test_whoever_finds_its_supervisor_stopped_tells_and_wakes_it(monkeypatch) -> None:
    signals: list[tuple[int, int]] = []
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda *sent: signals.append(sent))
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(os, "write", lambda _fd, said: len(said))
    monkeypatch.setattr(heartbeat, "is_stopped", lambda _pid: True)
    page = HeartbeatPage(local_memory(heartbeat_bytes(1)))
    look = end_with_supervisor(page, "alone", lambda: 60.0)
    for _ in range(9):
        look()
    assert not signals
    assert not page.accused(SUPERVISOR)
    look()
    assert signals == [(os.getppid(), signal.SIGCONT)]
    assert page.accused(SUPERVISOR)
    page.beat(SUPERVISOR)
    look()
    assert len(signals) == 1
    assert not ended


def test_heartbeat_thread_beats() -> None:
    page = HeartbeatPage(local_memory(heartbeat_bytes(0)))
    beat = Heartbeat(page, 0)
    beat.start()
    end = time.monotonic() + 5
    while page.read(0) < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    beat.stop()


def test_control_messages_and_the_end_of_the_peer() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = control.control_pair()
        heard: list[object] = []
        supervisor = control.ControlChannel(
            loop, ours, control.FromChild, heard.append, lambda: heard.append("end")
        )
        child = control.ControlChannel(
            loop, theirs, control.FromSupervisor, heard.append, lambda: None
        )
        child.send(control.Ready())
        child.send(control.failed(ValueError("x" * 10_000), 2))
        supervisor.send(control.Drain(1.5))
        await asyncio.sleep(0.05)
        assert heard[0] == control.Ready() or heard[0] == control.Drain(1.5)
        assert control.Failed("ValueError", "x" * 4096, 2) in heard
        child.close()
        child.send(control.Ready())
        await asyncio.sleep(0.05)
        assert heard[-1] == "end"
        supervisor.send(control.Stop())

    asyncio.run(play())


def test_what_happened_elsewhere_is_no_failure_of_the_one_that_says_so() -> None:
    who = "scheduler of rank 0"
    own = control.failed(JournalContractError("tick 3 makes no sense"), 2)
    assert own.cause(who) == f"{who} failed: JournalContractError: tick 3 makes no sense"
    for error, status in (
        (RankFailedError(1, "engine of rank 1 was killed by signal 9", 0.5), 2),
        (ReleasedError("rank 0 ended the world: engine of rank 0 was killed by signal 9"), 3),
    ):
        told = control.failed(error, 2)
        assert (told.cause(who), told.exit_status) == (str(error), status)


def test_child_spec_round_trip() -> None:
    spec = ChildSpec("engine", 2, "m:E", b"boot", 1, 1, 2.5, 3, 4, 5, (), (), (), {"slab": 9})
    assert spec.fds() == {3, 4, 5, 9}
    fd = write_spec(spec)
    assert read_spec(fd) == spec
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    assert spec.who == "engine of rank 2"


def test_inline_world_on_a_given_loop_and_clock(tmp_path: Path) -> None:
    """Two worlds, one loop: what a simulation does."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        boot = toy_world.boots(toy_world.Boot(str(tmp_path), messages=30))
        worlds = [
            InlineWorld(
                toy_world.topology(), boot, loop=loop, clock_ns=lambda: 5, run_blocking=run_here
            )
            for _ in range(2)
        ]
        for world in worlds:
            await world.start()
        end = time.monotonic() + 10
        while any(len(world.actors["door"].sums) < 30 for world in worlds):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        for world in worlds:
            assert world.contexts["door"].clock() == 5e-9
            assert [s.total for s in world.actors["door"].sums] == [n * 15 + 6 for n in range(30)]
            await world.stop()
            await world.kill()
            assert not world.failure.done()

    asyncio.run(play())


def test_spawned_work_and_timers_that_break_end_the_world(tmp_path: Path) -> None:
    async def play(how: str) -> str:
        loop = asyncio.get_running_loop()
        boot = toy_world.boots(toy_world.Boot(str(tmp_path), messages=0))
        world = InlineWorld(toy_world.topology(), boot, loop=loop)
        await world.start()

        async def broken() -> None:
            raise ValueError("broken aside")

        if how == "spawn":
            world.contexts["worker"].spawn(broken())
        else:
            world.contexts["worker"].call_later(0, int, "x")
        failure = await asyncio.wait_for(world.failure, 5)
        await world.fail(failure, "engine_failure", 0.1)
        await world.kill()
        return failure.cause

    assert asyncio.run(play("spawn")) == "worker of rank 0 failed: ValueError: broken aside"
    assert asyncio.run(play("timer")).startswith("worker of rank 0 failed: ValueError: invalid")


def test_a_rank_gives_rank_0_time_to_load_and_little_when_it_serves(monkeypatch) -> None:
    """A process that compiles holds its interpreter for seconds."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(os, "kill", lambda _pid, _signal: None)
    monkeypatch.setattr(os, "write", lambda _fd, said: len(said))
    page = HeartbeatPage(local_memory(heartbeat_bytes(1)))
    spec = RankSpec(
        rank=1, settings=b"", host="", port=1, token=b"", log_json=False,
        parent_pid=os.getppid(), heartbeat=-1, stall_s=2.0, start_stall_s=5.0, slab=-1,
    )  # fmt: skip
    serving = threading.Event()
    look = end_with_host(page, spec, serving)

    def looks(seconds: float) -> list[int]:
        for _ in range(round(seconds / BEAT_S)):
            look()
        return ended

    assert looks(4.0) == []
    page.beat(0)
    serving.set()
    assert looks(1.9) == []
    assert looks(0.5)[0] == RELEASED
