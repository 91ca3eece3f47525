"""What a deployment could leave on this machine, looked for before and after."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")
SETTLE_S = 10.0
"""What the kernel and ssh servers may take to clear away what has ended."""


class Leftovers:
    """`folder` holds every home and temporary folder of the deployment, so its processes are those
    that know its name; `ports` are those that it may listen on."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self._folder = folder
        self._ports = set(ports)
        self._segments = {file.name for file in SHARED.iterdir()}

    def now(self) -> dict[str, object]:
        """Equal dictionaries: nothing was left in between."""
        files = [file for file in self._folder.rglob("*") if file.exists()]
        return {
            "processes": self._processes(),
            "own children": sorted(
                f"{child.name()} {child.status()}" for child in psutil.Process().children()
            ),
            "ports": sorted(c.laddr.port for c in psutil.net_connections("tcp") if self._ours(c)),
            "locks": self._locks({file.stat().st_ino for file in files}),
            "segments": self._orphans(),
            # Operation streams are there where the last world came as far as to serve.
            "files": sorted(str(file) for file in files if file.suffix != ".ops"),
            "own open files": len(list(Path("/proc/self/fd").iterdir())),
            "own threads": threading.active_count(),
        }

    def settled(self, before: dict[str, object]) -> dict[str, object]:
        """As `now` once it is as `before`, or after so long that it will never be."""
        end = time.monotonic() + SETTLE_S
        while (found := self.now()) != before and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def _processes(self) -> list[str]:
        """Remains that the first process has not cleared away yet are none."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                place = Path(f"/proc/{pid}")
                known = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
                if pid != os.getpid() and str(self._folder).encode() in known:
                    found.append((place / "comm").read_text().strip())
        return sorted(found)

    def _ours(self, connection) -> bool:
        return connection.status == psutil.CONN_LISTEN and connection.laddr.port in self._ports

    @staticmethod
    def _locks(inodes: set[int]) -> list[str]:
        """Held locks of our files: `1: FLOCK ADVISORY WRITE 4711 00:2a:1234 0 EOF`."""
        lines = Path("/proc/locks").read_text().splitlines()
        return [line for line in lines if int(line.split()[-3].rpartition(":")[2]) in inodes]

    def _orphans(self) -> list[str]:
        """New segments that no process has mapped or open."""
        fresh = {file.name for file in SHARED.iterdir()} - self._segments
        for pid in psutil.pids() if fresh else ():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                fresh -= {name for name in fresh if str(SHARED / name) in maps}
        return sorted(fresh)
