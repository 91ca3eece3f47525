"""scheduler → http."""

from __future__ import annotations

import msgspec


class Queued(msgspec.Struct, frozen=True, tag=True):
    """Request `id` left the door: its choices are in the scheduler's queue or in slots."""

    id: str


class Seated(msgspec.Struct, frozen=True, tag=True):
    """The choice `id` has `slot`, since `at_ns` of the monotonic clock."""

    id: str
    slot: int
    at_ns: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Request `id` was not taken; `code` is an ApiError's."""

    id: str
    code: str
    message: str


FromScheduler = Queued | Seated | Refused
