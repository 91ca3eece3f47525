"""Backends that have the operations of every family."""

from __future__ import annotations

from dgpp.errors import ConfigError
from kernels_numba.backend import Backend
from kernels_numba.extended import ExtendedBackend


def extended(backend: Backend) -> ExtendedBackend:
    """`backend` itself. Raises ConfigError where it lacks operations that a layer needs."""
    if isinstance(backend, ExtendedBackend):
        return backend
    raise ConfigError(f"engine.backend: {backend.name} does not compute this family yet; cpu does")
