"""DGPP_NO_SWAP=1: the server's memory never goes to swap, by a control group of its own."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from dgpp.errors import ConfigError

SWITCH = "DGPP_NO_SWAP"
_INSIDE = "DGPP_NO_SWAP_SCOPE"

Exec = Callable[[str, list[str], Mapping[str, str]], NoReturn]


def has_swap(proc: Path = Path("/proc")) -> bool:
    """Whether this machine swaps at all."""
    try:
        return len((proc / "swaps").read_text().splitlines()) > 1
    except OSError:
        return False


def swap_limit(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> str:
    """`memory.swap.max` of this process's control group: "0" keeps it out of swap. Empty where
    that is not known."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
        group = next(line.partition("::")[2] for line in lines if line.startswith("0::"))
        return (groups / group.lstrip("/") / "memory.swap.max").read_text().strip()
    except (OSError, StopIteration):
        return ""


def keep_out_of_swap(
    environ: Mapping[str, str],
    arguments: Sequence[str],
    *,
    swaps: Callable[[], bool] = has_swap,
    limit: Callable[[], str] = swap_limit,
    execute: Exec = os.execvpe,
) -> None:
    """Start this command anew in a scope that may not swap, where DGPP_NO_SWAP asks for it and
    nothing keeps it out of swap yet. Raises ConfigError where that cannot be had."""
    wanted = environ.get(SWITCH, "") or "0"
    if wanted not in ("0", "1"):
        raise ConfigError(f"{SWITCH}: expected 0 or 1, got {wanted}")
    if wanted == "0" or limit() == "0" or not swaps():
        return
    if environ.get(_INSIDE):
        raise ConfigError(f"{SWITCH}=1: systemd's scope did not set MemorySwapMax=0")
    if shutil.which("systemd-run", path=environ.get("PATH")) is None:
        raise ConfigError(f"{SWITCH}=1: this machine swaps, and there is no systemd-run to stop it")
    user = [] if os.geteuid() == 0 else ["--user"]
    command = ["systemd-run", *user, "--scope", "--quiet", "-p", "MemorySwapMax=0", "--"]
    again = [*command, sys.executable, "-P", "-m", "dgpp", *arguments]
    execute("systemd-run", again, {**environ, _INSIDE: "1"})
