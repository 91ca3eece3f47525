"""Keeps what an engine's process has in memory there, before it loads anything large."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Mapping

from dgpp.errors import ConfigError

SWITCH = "DGPP_MLOCK"
_MCL_CURRENT = 1


def raise_limit() -> None:
    """Let this process and its children lock as much as the machine's administrator allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def lock_memory(environ: Mapping[str, str] = os.environ) -> str:
    """Lock the pages that this process has now, unless DGPP_MLOCK is off; what to say of it.

    A refusal changes nothing but latency under memory pressure. Raises ConfigError where the
    switch is neither on nor off.
    """
    switch = environ.get(SWITCH, "").lower() or "on"
    if switch not in ("on", "off"):
        raise ConfigError(f"{SWITCH}: expected on or off, got {switch}")
    if switch == "off":
        return f"memory not locked: {SWITCH}=off"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT) == 0:
        return "memory locked"
    return f"memory not locked: {os.strerror(ctypes.get_errno())}; RLIMIT_MEMLOCK bounds it"
