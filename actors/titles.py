"""What a process is called. A child sees to that first, so little is imported here."""

from __future__ import annotations

import ctypes

_PR_SET_NAME = 15


def title(role: str, rank: int) -> str:
    """What lists of processes and the kernel's log call the process: the rank first, since they cut
    what is longer than 15 bytes, as no role is on ranks below 10."""
    return f"dgpp{rank}-{role}"


def show_as(title: str) -> None:
    """Name this process in lists of processes, as far as 15 bytes go."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
