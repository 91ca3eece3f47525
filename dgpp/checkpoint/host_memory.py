"""How much memory this machine can still give."""

from __future__ import annotations

from pathlib import Path

from dgpp.errors import MemoryPlanError

MEMINFO = Path("/proc/meminfo")


def available_memory(path: Path = MEMINFO) -> int:
    """Bytes that Linux estimates can be allocated without swapping. Raises MemoryPlanError."""
    for line in path.read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    message = f"{path} does not state MemAvailable: cannot check the memory plan"
    raise MemoryPlanError(message)
