"""`toy_cycles.py MARKS COUNT`: run worlds in turn; print fds, memory maps and children, before
(after a first world, which imports and opens what stays) and after."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import toy_world

from actors.run import run_world


def cycle(marks: str) -> None:
    boot = toy_world.Boot(marks)
    status = run_world(
        toy_world.topology(),
        toy_world.boots(boot),
        on_ready=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert status == 0, status


def held() -> str:
    # A thread that has told its last may still be ending; one that is left stays.
    until = time.monotonic() + 5.0
    while threading.active_count() > 1 and time.monotonic() < until:
        time.sleep(0.01)
    maps = Path("/proc/self/maps").read_text().count("memfd:")
    fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    children = len(psutil.Process().children(recursive=True))
    return f"fds={fds},memfds={maps},children={children},threads={threading.active_count()}"


if __name__ == "__main__":
    cycle(sys.argv[1])
    before = held()
    for _ in range(int(sys.argv[2])):
        cycle(sys.argv[1])
    print(before, held())
