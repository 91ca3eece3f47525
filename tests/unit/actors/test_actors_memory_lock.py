"""Locking is tried, and what came of it is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.memory_lock import lock_memory
from dgpp.errors import ConfigError

PROGRAM = """
import resource
from actors.memory_lock import lock_memory, raise_limit
hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
raise_limit()
print(resource.getrlimit(resource.RLIMIT_MEMLOCK) == (hard, hard))
print(lock_memory({}))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmLck")][0])
"""


def test_the_limit_is_raised_and_the_pages_are_locked_or_the_refusal_is_said():
    # In a process of its own: a test runner keeps its memory as it is.
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    raised, said, locked = done.stdout.splitlines()
    assert raised == "True"
    assert (said == "memory locked") == (int(locked) > 0)
    assert said == "memory locked" or "RLIMIT_MEMLOCK bounds it" in said


def test_the_switch_turns_it_off():
    assert lock_memory({"DGPP_MLOCK": "OFF"}) == "memory not locked: DGPP_MLOCK=off"
    with pytest.raises(ConfigError, match="DGPP_MLOCK: expected on or off, got maybe"):
        lock_memory({"DGPP_MLOCK": "maybe"})
