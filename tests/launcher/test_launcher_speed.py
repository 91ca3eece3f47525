"""How long `dgpp up` takes for a world of two nodes, stage by stage. Prints, never asserts."""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime

import psutil
import pytest
from launching import Launcher
from sshd import Machines

ROUNDS = 3
STAGES = {
    "settings": "main[0] world of 2",
    "joined": "rank 1 joined",
    "engines": "the scripted engine",
    "READY": "READY",
}
"""Stages with a sign of their end in the logs; the last that shows it counts."""


@pytest.fixture
def machines(tmp_path):
    found = Machines(tmp_path / "ssh")
    yield found
    found.close()


@pytest.mark.bench
@pytest.mark.timeout(900)
@pytest.mark.parametrize("placement", ["processes", "inline"])
def test_up_to_ready_of_two_nodes(machines, tmp_path, placement):
    launcher = Launcher(machines, tmp_path, placement=placement)
    sys.stdout.write(f"\n{placement}: seconds since the command began, the whole command, `down`\n")
    try:
        for _ in range(ROUNDS):
            began, used = time.time(), os.times()
            assert launcher.run("up")[0] == 0
            took = time.time() - began
            used_by_up = sum(os.times()[2:4]) - sum(used[2:4])
            ranks = sum(map(cpu_of, launcher.pids()))
            lines = launcher.run("logs")[1].splitlines()
            begun = time.monotonic()
            assert launcher.run("down")[0] == 0
            down = time.monotonic() - begun
            said = ", ".join(f"{name} {at(lines, sign, began)}" for name, sign in STAGES.items())
            load = os.getloadavg()[0]
            sys.stdout.write(
                f"  {said}; up {took:.1f}, down {down:.1f}; CPU of up {used_by_up:.1f}, "
                f"of the ranks {ranks:.1f}; load {load:.1f}\n"
            )
    finally:
        launcher.kill_all()


def cpu_of(pid) -> float:
    """Seconds that a rank's processes have computed."""
    main = psutil.Process(pid)
    times = [process.cpu_times() for process in (main, *main.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def at(lines, sign, began) -> str:
    stamps = [line.split(" ")[1] for line in lines if sign in line]
    moments = [datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    return f"{max(moments) - began:.1f}" if moments else "-"
