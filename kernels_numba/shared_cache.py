"""Numba's cache on disk, shared by processes that start at once: one compiles, the others load.

The ranks of a host want the same kernels in the same order. Where each compiled what it missed, a
first start would take the processor's time of all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernels_numba.entry_lock import hold, let_go


class SharedCache:
    """In place of a function's cache. From a miss until the entry is saved it holds the function's
    lock. No two processes wait for one another: whoever compiles a function waits at most for those
    that it calls. One whose compilation fails keeps its lock until it ends."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._path = Path(cache.cache_path) / cache._impl.filename_base
        self._lock: int | None = None
        self._depth = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function, or None where this process is the one to compile it."""
        found = self._load(signature, target)
        if found is None:
            if self._depth == 0:
                self._lock = hold(self._path)
            self._depth += 1
            found = self._load(signature, target)
            if found is not None:
                self._release()
        return found

    def _load(self, signature: Any, target: Any) -> Any:
        try:
            return self._cache.load_overload(signature, target)
        except Exception:  # noqa: BLE001 - a file that lost its end raises whatever its bytes say
            # As a machine leaves them that stops while it writes: compiled and written anew, by
            # whoever has the lock.
            if self._depth:
                self._cache.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        try:
            self._cache.save_overload(signature, compiled)
        finally:
            self._release()

    def _release(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            let_go(self._lock)
            self._lock = None
