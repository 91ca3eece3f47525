"""A world of toy actors, tormented from outside: kills, stops, failures, signals."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import toy_world
from toy_world import Boot

from actors.heartbeat import STOPPED_S
from actors.supervisor import Settings

ROLES = ("keeper", "worker", "door")
PLACEMENTS = ("processes", "inline")
# In processes every role breaks by the same code: one of them will do.
BREAKING = (("processes", "worker"), *(("inline", role) for role in ROLES))


class World:
    """The supervisor as a process of its own, and the marks that its actors leave."""

    def __init__(self, marks: Path, placement: str, boot: Boot, settings: Settings) -> None:
        self.marks = marks
        script = toy_world.__file__
        self.process = subprocess.Popen(
            [
                sys.executable,
                script,
                placement,
                msgspec.json.encode(boot).decode(),
                msgspec.json.encode(settings).decode(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        assert readable
        line = self.process.stdout.readline()
        assert line == "READY\n", self.process.communicate()

    def wait_mark(self, name: str, seconds: float = 20) -> str:
        end = time.monotonic() + seconds
        while not (self.marks / name).exists():
            assert time.monotonic() < end, f"no {name}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        return (self.marks / name).read_text()

    def pid(self, role: str) -> int:
        return int((self.marks / f"{role}.pid").read_text())

    def end(self, seconds: float = 20) -> tuple[int, str]:
        """Exit status and what stood on stderr."""
        _, errors = self.process.communicate(timeout=seconds)
        return self.process.returncode, errors

    def assert_nothing_left(self) -> None:
        end = time.monotonic() + 2
        for role in ROLES:
            with contextlib.suppress(FileNotFoundError):
                while psutil.pid_exists(self.pid(role)):
                    assert time.monotonic() < end, f"{role} lives"
                    time.sleep(0.01)


@contextlib.contextmanager
def world(
    tmp_path: Path,
    placement: str = "processes",
    *,
    settings: Settings | None = None,
    **boot: object,
) -> Iterator[World]:
    started = World(tmp_path, placement, Boot(str(tmp_path), **boot), settings or Settings())
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_same_work_then_orderly_end(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, messages=50) as w:
        w.wait_ready()
        done = w.wait_mark("door.done")
        w.process.send_signal(signal.SIGINT)
        status, errors = w.end()
        assert status == 0, errors
        assert "Traceback" not in errors
        w.assert_nothing_left()
    # number*15 + 0+1+2+3, in order, whatever the placement.
    sums = [f"Sum(number={n}, total={n * 15.0 + 6})" for n in range(50)]
    assert f"[{', '.join(sums)}]" in done
    assert "'worker': {'works': 50}, 'door': {'sums': 50}" in done
    assert (tmp_path / "door.drain").exists()
    assert (tmp_path / "keeper.note").read_text() == "handed to keeper"
    stops = [int((tmp_path / f"{role}.stop").read_text()) for role in ("door", "worker", "keeper")]
    assert stops == sorted(stops)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_an_actor_can_end_the_world_in_order(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, break_at="keeper:receive:end") as w:
        status, errors = w.end()
    assert status == 0, errors
    assert "keeper has enough: draining up to 30 s" in errors
    assert (tmp_path / "door.drain").exists()
    assert (tmp_path / "keeper.stop").exists()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_watch_ends_a_stuck_actor_with_its_last_words(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, break_at="keeper:receive:watch") as w:
        status, errors = w.end()
    assert status == 2, errors
    assert f"keeper waited {0.1 if placement == 'processes' else 1} s" in errors
    assert "keeper of rank 0 " + ("exited" if placement == "processes" else "failed") in errors


# The door hears of the others' end, and nobody of the door's.
@pytest.mark.parametrize("role", ["worker", "door"])
def test_killed_actor_ends_the_world(tmp_path: Path, role: str) -> None:
    with world(tmp_path) as w:
        w.wait_ready()
        w.wait_mark("door.done")
        began = time.monotonic()
        os.kill(w.pid(role), signal.SIGKILL)
        status, errors = w.end()
        took = time.monotonic() - began
        cause = f"{role} of rank 0 was killed by signal 9"
        assert status == 2
        assert cause in errors
        assert took < 3
        w.assert_nothing_left()
        told = tmp_path / "door.fail"
        assert told.exists() == (role != "door")
        if told.exists():
            assert told.read_text() == f"{cause}|engine_failure"


@pytest.mark.parametrize("role", ["worker", "door"])
def test_stopped_actor_ends_the_world(tmp_path: Path, role: str) -> None:
    # One with the times that serve, the other with shorter ones.
    settings = Settings() if role == "worker" else Settings(grace_s=0.2)
    with world(tmp_path, settings=settings, linger_s=60.0) as w:
        w.wait_ready()
        w.wait_mark("door.done")
        began = time.monotonic()
        os.kill(w.pid(role), signal.SIGSTOP)
        status, errors = w.end()
        took = time.monotonic() - began
        assert status == 2
        assert f"{role} of rank 0 stopped responding: a signal has stopped it" in errors
        assert STOPPED_S - 0.2 < took < 3.3  # 2.6 s on a quiet machine
        print(f"{role} stopped: gone after {took:.2f} s")
        w.assert_nothing_left()
        assert (tmp_path / "door.fail").exists() == (role != "door")


def test_grace_is_bounded(tmp_path: Path) -> None:
    with world(tmp_path, settings=Settings(grace_s=0.5), linger_s=60.0) as w:
        w.wait_ready()
        began = time.monotonic()
        os.kill(w.pid("worker"), signal.SIGKILL)
        status, _ = w.end()
        assert status == 2
        assert 0.4 < time.monotonic() - began < 3
        w.assert_nothing_left()


@pytest.mark.parametrize(("placement", "role"), BREAKING)
def test_failing_start(tmp_path: Path, placement: str, role: str) -> None:
    with world(tmp_path, placement, break_at=f"{role}:start") as w:
        status, errors = w.end()
        assert status == 1
        assert f"{role} of rank 0 failed: ValueError: broken in start" in errors
        assert errors.count("Traceback") == 1
        w.assert_nothing_left()


def test_named_start_error_has_no_traceback(tmp_path: Path) -> None:
    with world(tmp_path, break_at="worker:start:named") as w:
        status, errors = w.end()
        assert status == 1
        assert "worker of rank 0 failed: ConfigError: named in start" in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize(("placement", "role"), BREAKING)
def test_failing_handler(tmp_path: Path, placement: str, role: str) -> None:
    with world(tmp_path, placement, break_at=f"{role}:receive") as w:
        status, errors = w.end()
        assert status == 2
        assert f"{role} of rank 0 failed: ValueError: broken in receive" in errors
        assert errors.count("Traceback") == 1
        w.assert_nothing_left()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_contract_error_while_serving_keeps_its_status(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, break_at="keeper:receive:named") as w:
        status, errors = w.end()
        assert status == 1
        assert "keeper of rank 0 failed: ConfigError: named in receive" in errors


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_drain_times_out(tmp_path: Path, placement: str) -> None:
    settings = Settings(drain_timeout_s=0.3)
    with world(tmp_path, placement, settings=settings, slow_drain_s=60.0) as w:
        w.wait_ready()
        w.process.send_signal(signal.SIGTERM)
        status, errors = w.end()
        assert status == 0
        assert "not drained within 0.3 s" in errors
        w.assert_nothing_left()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_second_signal_ends_at_once(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, slow_drain_s=60.0) as w:
        w.wait_ready()
        w.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        began = time.monotonic()
        w.process.send_signal(signal.SIGTERM)
        status, _ = w.end()
        assert status == 2
        assert time.monotonic() - began < 2
        w.assert_nothing_left()


def test_actor_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with world(tmp_path, break_at="keeper:hang") as w:
        w.wait_ready()
        began = time.monotonic()
        w.process.send_signal(signal.SIGINT)
        status, errors = w.end()
        assert status == 0, errors
        assert 1 <= time.monotonic() - began < 4
        w.assert_nothing_left()


def test_failing_drain_and_stop(tmp_path: Path) -> None:
    for hook, role in (("drain", "door"), ("stop", "worker")):
        marks = tmp_path / hook
        marks.mkdir()
        with world(marks, break_at=f"{role}:{hook}") as w:
            w.wait_ready()
            w.process.send_signal(signal.SIGINT)
            status, errors = w.end()
            assert status == 2
            assert f"{role} of rank 0 failed: ValueError: broken in {hook}" in errors
            w.assert_nothing_left()


def test_watchdog_forces_the_end(tmp_path: Path) -> None:
    settings = Settings(drain_timeout_s=60.0, watchdog_s=-59.5)
    with world(tmp_path, settings=settings, slow_drain_s=60.0) as w:
        w.wait_ready()
        w.process.send_signal(signal.SIGINT)
        status, errors = w.end()
        assert status == 2
        assert "forced" in errors
        w.assert_nothing_left()


def test_start_timeout_and_signal_before_ready(tmp_path: Path) -> None:
    with world(tmp_path, settings=Settings(start_timeout_s=0.01)) as w:
        status, errors = w.end()
        assert status == 1
        assert "not ready within start_timeout_s 0.01" in errors
        w.assert_nothing_left()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_signal_before_ready(tmp_path: Path, placement: str) -> None:
    with world(tmp_path, placement, break_at="door:start:slow") as w:
        w.wait_mark("worker.start")
        w.wait_mark("door.pid")
        w.process.send_signal(signal.SIGTERM)
        status, errors = w.end(5)
        assert status == 0, errors
        w.assert_nothing_left()


def test_announced_loading_may_hold_the_interpreter(tmp_path: Path) -> None:
    settings = Settings(stall_s=0.5)
    with world(tmp_path, settings=settings, break_at="worker:start:hold") as w:
        w.wait_ready()
        w.wait_mark("door.done")
        w.process.send_signal(signal.SIGTERM)
        status, errors = w.end()
        assert status == 0
        assert "worker of rank 0: holding the interpreter" in errors


def test_held_interpreter_counts_as_stopped(tmp_path: Path) -> None:
    settings = Settings(stall_s=0.5)
    with world(tmp_path, settings=settings, break_at="keeper:receive:hold") as w:
        status, errors = w.end()
        assert status == 2
        assert "keeper of rank 0 stopped responding" in errors


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        w.wait_ready()
        w.process.kill()
        w.process.wait()
        w.assert_nothing_left()


PHASES = {
    "loading": {"break_at": "door:start:slow"},
    "serving": {},
    "draining": {"slow_drain_s": 60.0},
    "stopping": {"break_at": "keeper:hang", "shutdown_s": 60.0},
}
QUICK = {("loading", "worker"), ("loading", "supervisor"), ("draining", "supervisor")}
"""What every change is tried with; the others are long."""


def reach(w: World, phase: str) -> None:
    if phase == "loading":
        for role in ROLES:
            w.wait_mark(f"{role}.pid")
        return
    w.wait_ready()
    if phase != "serving":
        w.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    if phase == "stopping":
        w.wait_mark("worker.stop")


@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        pytest.param(*drill, marks=() if drill in QUICK else pytest.mark.long)
        for drill in itertools.product(PHASES, ("keeper", "worker", "supervisor"))
        if drill != ("stopping", "worker")
    ],
)
def test_a_stopped_process_is_named_in_every_phase(tmp_path: Path, phase: str, victim: str) -> None:
    with world(tmp_path, settings=Settings(grace_s=0.2), **PHASES[phase]) as w:
        reach(w, phase)
        began = time.monotonic()
        pid = w.process.pid if victim == "supervisor" else w.pid(victim)
        os.kill(pid, signal.SIGSTOP)
        status, errors = w.end()
        assert STOPPED_S - 0.2 < time.monotonic() - began < 3
        cause = f"{victim} of rank 0 stopped responding: a signal has stopped it"
        assert cause in errors.splitlines()
        assert errors.count(" of rank 0 ") == 1
        assert status == (1 if phase == "loading" else 2)
        w.assert_nothing_left()
        told = tmp_path / "door.fail"
        assert told.exists() == (phase in ("serving", "draining"))
        if told.exists():
            assert told.read_text() == f"{cause}|engine_failure"


def test_a_child_hears_of_its_parents_death_before_it_imports_what_takes_long() -> None:
    code = "import sys, actors.child; print(*{'numpy', 'uvloop', 'msgspec'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "\n"


def test_a_signal_that_comes_late_does_not_become_the_status(tmp_path: Path) -> None:
    with world(tmp_path, settings=Settings(grace_s=0.3), linger_s=60.0) as w:
        w.wait_ready()
        os.kill(w.pid("worker"), signal.SIGKILL)
        w.wait_mark("door.fail")
        while w.process.poll() is None:
            w.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert w.end()[0] == 2


def test_children_ignore_interrupts_and_show_their_role(tmp_path: Path) -> None:
    with world(tmp_path) as w:
        w.wait_ready()
        for role in ROLES:
            process = psutil.Process(w.pid(role))
            assert process.cmdline()[-3:-1] == [role, "0"]
            assert process.name() == f"dgpp0-{role}"[:15]
            os.kill(process.pid, signal.SIGINT)
        time.sleep(0.2)
        assert w.process.poll() is None


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.long)])
def test_nothing_leaks_over_many_worlds(tmp_path: Path, count: int) -> None:
    """Worlds one after the other, from one process."""
    script = Path(__file__).with_name("toy_cycles.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(count)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.split()
    assert before == after
