"""Which values of engine.collective serve which backend; loads no kernels."""

from __future__ import annotations

from dgpp.errors import ConfigError


def require_served(wanted: str, backend: str) -> None:
    """Raises ConfigError where engine.collective `wanted` cannot serve `backend`."""
    if wanted == "verbs":
        raise ConfigError("not supported yet: engine.collective verbs")
    if wanted == "nccl" and backend != "cuda":
        raise ConfigError(f"engine.collective: nccl is of GPUs, the backend is {backend}")
    if wanted == "shm" and backend == "cuda":
        raise ConfigError(
            "engine.collective: shm sums in the host's memory, which a GPU's graphs cannot wait "
            "for; leave it at auto, or take nccl"
        )
