"""Work that is cut short before each of its steps on files and processes, one after the other."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

FILES = ("mkdir", "rename", "remove", "rmdir", "chmod", "truncate")
STEPS = {"subprocess.Popen", *(f"os.{name}" for name in FILES)}


def cut_short(work: Callable[[], object], number: int, within: str) -> Iterator[int]:
    """Runs `work` in a process of its own that sends itself signal `number` before its first step
    below the folder `within`, then before its second, … until it comes to its end; each time its
    status as `os.waitstatus_to_exitcode` has it, when it has ended."""
    at = 0
    while (status := _run(work, number, within, at)) != 0:
        yield status
        at += 1


def _changes(event: str, arguments: tuple[Any, ...]) -> bool:
    return event in STEPS or (event == "open" and bool(arguments[2] & os.O_ACCMODE))


def _run(work: Callable[[], object], number: int, within: str, at: int) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 70
    try:
        left = at

        def step(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal left
            if _changes(event, arguments) and within in str(arguments):
                if left == 0:
                    os.kill(os.getpid(), number)
                left -= 1

        sys.addaudithook(step)
        work()
        status = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
        status = getattr(error, "exit_status", 70)
        if status == 70:
            traceback.print_exc()
    finally:
        os._exit(status)
