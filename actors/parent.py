"""A process and the one that started it. A child sees to that first, so little is imported here."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send the signal when the thread that started this process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def require_parent(pid: int) -> None:
    """End at once where the parent was gone before the kernel was asked."""
    if os.getppid() != pid:
        os._exit(2)


def title(role: str, rank: int) -> str:
    """What lists of processes and the kernel's log call the process: the rank first, since they cut
    what is longer than 15 bytes, as no role is on ranks below 10."""
    return f"dgpp{rank}-{role}"


def show_as(title: str) -> None:
    """Name this process in lists of processes, as far as 15 bytes go."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
