"""A process and the one that started it. A child sees to that first, so little is imported here.

`python -I -S FILE-OF-THIS PID COMMAND…` runs a command that ends with its parent, process PID.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PYTHON = sys.executable


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send the signal when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def require_parent(pid: int) -> None:
    """End at once where the parent was gone before the kernel was asked."""
    if os.getppid() != pid:
        os._exit(2)


def ending_with_this(command: Sequence[str]) -> list[str]:
    """`command` for the thread that starts it: SIGTERM ends it when that has ended, by whatever."""
    return [_PYTHON, "-I", "-S", __file__, str(os.getpid()), *command]


def _become(pid: str, *command: str) -> None:
    die_with_parent(signal.SIGTERM)
    require_parent(int(pid))
    # Python ignores it, and what is ignored stays so.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - words as they are, past every shell
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    _become(*sys.argv[1:])
