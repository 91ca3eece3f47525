"""How a world of several ranks ends, by name. Every message says which rank and what it did."""

from __future__ import annotations

from dgpp.errors import DgppError, WorldFailedError


class JoinError(DgppError):
    """A rank could not join, or not all ranks came: the world does not start."""


class FrameError(DgppError):
    """What a connection carried is no journal frame, or one beyond its bound."""


class JournalContractError(DgppError):
    """The journal says what it may not say, or ranks no longer agree: nothing more is served."""

    traced = False


class RankFailedError(WorldFailedError):
    """Another rank failed, ended, fell silent or broke the journal's contract, seen from rank 0.

    `cause` is the message without the rank, `age_s` how long ago it happened.
    """

    traced = False
    elsewhere = True

    def __init__(self, rank: int, cause: str, age_s: float = 0.0) -> None:
        super().__init__(f"rank {rank}: {cause}")
        self.rank = rank
        self.cause = cause
        self.age_s = age_s


class ReleasedError(DgppError):
    """The world ended on another rank: this one has nothing left to do."""

    exit_status = 3
    traced = False
    elsewhere = True
