"""The errors this project raises by name. Every one says who, which limit and which key."""

from __future__ import annotations


class DgppError(Exception):
    """Root of all named errors. `exit_status` is what the process exits with when it is fatal.

    `traced`: whether the place where it was raised tells more than its message, once serving.
    `elsewhere`: it tells of another rank, and is no fault of the one that raises it.
    """

    exit_status = 1
    traced = True
    elsewhere = False


class ConfigError(DgppError):
    """A key is unknown, mistyped or out of range, or two keys contradict each other."""


class CheckpointError(DgppError):
    """A checkpoint is missing, truncated or does not hold exactly the tensors its family binds."""


class FetchError(CheckpointError):
    """A model cannot be downloaded or copied; the message says why and what to do."""


class MemoryPlanError(DgppError):
    """The memory plan does not fit; the message names the largest items and what would fit:
    `kv_capacity` tokens at most, 0 where it is not them. `weights`: they alone do not fit."""

    def __init__(self, message: str, kv_capacity: int = 0, *, weights: bool = False) -> None:
        super().__init__(message)
        self.kv_capacity = kv_capacity
        self.weights = weights


class WorldFailedError(DgppError):
    """An actor died or stopped answering while serving; the message names it."""

    exit_status = 2


class EngineStalledError(DgppError):
    """A step of the engine did not end: its device hangs."""

    exit_status = 2


class NumericError(DgppError):
    """The model computed something that is no number: a damaged checkpoint or a fault of ours."""

    exit_status = 2
