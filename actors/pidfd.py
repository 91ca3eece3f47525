"""A child's death as an event of the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class PidfdWatch:
    """Calls `on_exit` once, from the loop, when process `pid` has ended (it is not reaped here)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, on_exit: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._on_exit = on_exit
        self._fd = os.pidfd_open(pid)
        loop.add_reader(self._fd, self._ended)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _ended(self) -> None:
        self.close()
        self._on_exit()
