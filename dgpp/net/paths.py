"""Which way ranks sum: what engine.collective means on a backend; loads no kernels."""

from __future__ import annotations

import enum

from dgpp.errors import ConfigError

NAMES = ("shm", "p2p", "nccl", "verbs")
"""Of collectives, as they call themselves."""


class Route(enum.Enum):
    """Where ranks meet, and GPUs sum. `DEVICES`: in shared memory, sums by p2p or NCCL, as the GPUs
    find out. `VERBS`: over the RoCE bus, GPUs' sums too, unless NCCL is wanted for them."""

    SHM = "shm"
    DEVICES = "devices"
    VERBS = "verbs"


def path_of(wanted: str, backend: str, *, apart: bool) -> Route:
    """How ranks sum that compute on `backend`. `wanted` is engine.collective; `apart`: they are on
    several nodes, or each was started by itself.

    Raises ConfigError where `wanted` cannot serve.
    """
    key = f"engine.collective: {wanted}"
    if backend == "cuda":
        return _of_gpus(wanted, key, apart=apart)
    if wanted == "nccl":
        raise ConfigError(f"{key} is of GPUs, the backend is {backend}")
    if wanted == "shm" and apart:
        raise ConfigError(
            f"{key} is the memory that one `dgpp run` gives to all its ranks, these are started "
            "apart; leave it at auto, or take verbs"
        )
    return Route.VERBS if apart or wanted == "verbs" else Route.SHM


def _of_gpus(wanted: str, key: str, *, apart: bool) -> Route:
    if wanted == "shm":
        raise ConfigError(
            f"{key} sums in the host's memory, which a GPU's graphs cannot wait for; leave it at "
            "auto, or take nccl or verbs"
        )
    return Route.VERBS if apart or wanted == "verbs" else Route.DEVICES
